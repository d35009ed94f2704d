"""Gets hold of a directory in one way, shows that it reads and writes there, waits for a file, and tries again by that hold alone.

hold.py HOW PLACE [GO]: the directory PLACE has a file `note`; GO is the file that it waits for, /tmp/go if it is not said.
Says `holds` when it has it, and then what came of `later` (a file that others write there meanwhile) and of writing `by-HOW`.
"""
import array, ctypes, os, socket, sys, threading, time

HOW, PLACE = sys.argv[1], sys.argv[2]
GO = os.path.split(sys.argv[3] if len(sys.argv) > 3 else "/tmp/go")
TMP = os.open(GO[0], os.O_RDONLY)
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_FS, CLONE_FILES = 0x200, 0x400


def using(opened, act):
    try:
        return act(opened)
    finally:
        os.close(opened)


def read_at(fd, name):
    return lambda: using(os.open(name, os.O_RDONLY, dir_fd=fd), lambda file: os.read(file, 100))


def write_at(fd, name):
    flags = os.O_WRONLY | os.O_CREAT
    return lambda: using(os.open(name, flags, 0o644, dir_fd=fd), lambda file: os.write(file, b"x"))


def attempt(act):
    try:
        act()
        return "done"
    except OSError as error:
        return os.strerror(error.errno).replace(" ", "-")


def report(reads, writes):
    print("read", attempt(reads), "wrote", attempt(writes), flush=True)


def wait():
    while True:
        try:
            os.stat(GO[1], dir_fd=TMP)
            return
        except FileNotFoundError:
            time.sleep(0.01)


def holds():
    """What was tried before went through, or there is nothing to take away."""
    print("holds", flush=True)
    wait()


def directory(fd):
    read_at(fd, "note")()
    write_at(fd, "before-" + HOW)()
    holds()
    report(read_at(fd, "later"), write_at(fd, "by-" + HOW))


def there():
    here = os.open(PLACE, os.O_PATH)
    read_at(here, "note")()
    write_at(here, "before-" + HOW)()
    os.close(here)


def cwd():
    os.chdir(PLACE)
    directory(None)


def root():
    os.chroot(PLACE)  # the working directory stays where it was
    read_at(None, "/note")()
    write_at(None, "/before-root")()
    holds()
    report(read_at(None, "/later"), write_at(None, "/by-root"))


def thread():
    """A thread with a working directory of its own; the process stays in the root."""
    ends = []

    def run():
        assert LIBC.unshare(CLONE_FS) == 0
        os.chdir(PLACE)
        directory(None)
        ends.append(True)

    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert ends


def thread_files():
    """The same with a table of descriptors of its own."""
    ends = []

    def run():
        assert LIBC.unshare(CLONE_FILES) == 0
        directory(os.open(PLACE, os.O_RDONLY))
        ends.append(True)

    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert ends


def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir(PLACE)
            directory(None)
        os._exit(0)
    os.wait()
    while True:
        time.sleep(1)


def file():
    fd = os.open(os.path.join(PLACE, "note"), os.O_RDWR)
    there()
    holds()
    report(lambda: os.pread(fd, 100, 0), lambda: os.pwrite(fd, b"by-file", 0))


def file_to_read():
    fd = os.open(os.path.join(PLACE, "note"), os.O_RDONLY)
    there()
    holds()
    report(lambda: os.pread(fd, 100, 0), lambda: os.fchmod(fd, 0o600))


def mapped():
    """A mapping alone: the descriptor is closed."""
    fd = os.open(os.path.join(PLACE, "note"), os.O_RDWR)
    # By hand: Python's own keeps a descriptor beside it.
    LIBC.mmap.restype = ctypes.c_void_p
    at = LIBC.mmap(None, ctypes.c_size_t(4096), 3, 1, fd, ctypes.c_long(0))
    assert at and at != ctypes.c_void_p(-1).value
    os.close(fd)
    there()
    assert ctypes.string_at(at, 4)
    holds()
    report(lambda: ctypes.string_at(at, 4), lambda: ctypes.memmove(at, b"by-m", 4))


def queued(flags, place):
    """In the queue of a socket alone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    fd = os.open(place, flags)
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
    there()
    holds()
    _, control, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(4))
    return array.array("i", control[0][2])[0]


def queue():
    fd = queued(os.O_RDONLY, PLACE)
    report(read_at(fd, "later"), write_at(fd, "by-queue"))


def queue_of_a_file():
    fd = queued(os.O_RDWR, os.path.join(PLACE, "note"))
    report(lambda: os.pread(fd, 100, 0), lambda: os.pwrite(fd, b"by-queue", 0))


def program():
    """A program that lies there runs."""
    there()
    if not os.path.exists(os.path.join(PLACE, "program")):
        with open("/usr/bin/sleep", "rb") as source, open(os.path.join(PLACE, "program"), "wb") as target:
            target.write(source.read())
    os.chmod(os.path.join(PLACE, "program"), 0o755)
    child = os.fork()
    if child == 0:
        os.execv(os.path.join(PLACE, "program"), ["program", "1000"])
    while os.readlink(f"/proc/{child}/exe") != os.path.join(PLACE, "program"):
        time.sleep(0.01)
    holds()
    ended, _ = os.waitpid(child, os.WNOHANG)
    print("its program", "was-ended" if ended else "runs", flush=True)


def watch(number=None):
    """Hears of names there: by a watch on the directory, and by one on a file."""
    fd = LIBC.inotify_init1(os.O_NONBLOCK)
    assert number in (None, fd)
    there()
    assert LIBC.inotify_add_watch(fd, PLACE.encode(), 0x300) > 0
    assert LIBC.inotify_add_watch(fd, os.path.join(PLACE, "note").encode(), 0x2) > 0
    holds()
    heard = []
    deadline = time.time() + 10
    while len(heard) < 2 and time.time() < deadline:
        try:
            events = os.read(fd, 65536)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        while events:
            mask, length = int.from_bytes(events[4:8], "little"), int.from_bytes(events[12:16], "little")
            heard.append("ignored" if mask & 0x8000 else events[16:16 + length].rstrip(b"\0").decode() or "written")
            events = events[16 + length:]
    print("heard", ",".join(sorted(heard)), flush=True)


def watch_thread():
    """In a table of descriptors of a thread's own."""
    pipe, _ = os.pipe()

    def run():
        assert LIBC.unshare(CLONE_FILES) == 0
        os.close(pipe)  # so that its number is another thing to the rest of the process
        watch(pipe)

    other = threading.Thread(target=run)
    other.start()
    other.join()


def take():
    """Is handed a directory of another sandbox, by the relay in a directory that both see."""
    door = socket.socket(socket.AF_UNIX)
    door.connect(os.path.join(PLACE, "door"))
    door.send(b"t")
    print("waits", flush=True)
    _, control, _, _ = door.recvmsg(1, socket.CMSG_SPACE(4))
    fd = array.array("i", control[0][2])[0]
    door.close()
    holds()
    print("has", attempt(lambda: os.fstat(fd)), flush=True)


def give():
    """The other side of it: GO is the door."""
    door = socket.socket(socket.AF_UNIX)
    door.connect(os.path.join(*GO))
    fd = array.array("i", [os.open(PLACE, os.O_RDONLY)])
    door.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)])
    door.recv(1)


{
    "cwd": cwd,
    "directory": lambda: directory(os.open(PLACE, os.O_RDONLY)),
    "path": lambda: directory(os.open(PLACE, os.O_PATH)),
    "root": root,
    "thread": thread,
    "thread_files": thread_files,
    "daemon": daemon,
    "file": file,
    "file_to_read": file_to_read,
    "mapped": mapped,
    "queue": queue,
    "queue_of_a_file": queue_of_a_file,
    "program": program,
    "watch": watch,
    "watch_thread": watch_thread,
    "take": take,
    "give": give,
}[HOW]()
