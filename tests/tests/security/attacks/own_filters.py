# Puts long filters of system calls on as many processes as the first argument says, in several ways, and tells how many got one.
import ctypes, errno, os, platform, signal, struct, sys, threading, time

many = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
SECCOMP, EXIT = {"x86_64": (317, 60), "aarch64": (277, 93)}[platform.machine()]
ALL_THREADS = 1
# A division is long in machine code.
code = struct.pack("HBBI", 0x34, 0, 0, 3) * 4095 + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
place = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HxxxxxxP", 4096, ctypes.addressof(place))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS


def by_seccomp(flags=0):
    return libc.syscall(SECCOMP, 1, flags, program) == 0


def by_prctl():
    return libc.prctl(22, 2, program, 0, 0) == 0


def said():
    return errno.errorcode[ctypes.get_errno()]


def wait_for_ever():
    while True:
        signal.pause()


def alone(put_on):
    def body(tell):
        os.write(tell, b"y" if put_on() else b"n")
        wait_for_ever()

    return body


# Who has put it on ends, and a child of its has it.
def handed_on(tell):
    answer = b"y" if by_seccomp() else b"n"
    if os.fork():
        os._exit(0)
    os.write(tell, answer)
    wait_for_ever()


# The first thread, of which the kernel tells, ends before another one puts it on.
def leaderless(tell):
    first_has_ended = "/proc/self/task/%d/stat" % os.getpid()

    def rest():
        while ") Z " not in open(first_has_ended).read():
            pass
        os.write(tell, b"y" if by_seccomp(ALL_THREADS) else b"n")
        threading.Event().wait()

    threading.Thread(target=rest).start()
    libc.syscall(EXIT, 0)


def count(body):
    """In a process group of its own, all of which ends then."""
    told, tell = os.pipe()
    group, gone = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.setpgid(0, 0)
        for _ in range(many):
            if os.fork() == 0:
                body(tell)
        wait_for_ever()
    answers = b""
    while len(answers) < many:
        answers += os.read(told, many)
    os.close(gone)
    os.killpg(leader, signal.SIGKILL)
    os.waitpid(leader, 0)
    os.read(group, 1)  # held by all of them: the last has closed it
    os.close(told), os.close(tell), os.close(group)
    return answers.count(b"y")


for name, body in [
    ("processes", alone(by_seccomp)),
    ("processes by prctl", alone(by_prctl)),
    ("children of theirs", handed_on),
    ("processes without a first thread", leaderless),
]:
    print(name, count(body), flush=True)


# Each thread has one of its own.
def of_threads():
    answers = []
    go_on = threading.Event()

    def one():
        answers.append(by_seccomp())
        go_on.wait()

    threads = [threading.Thread(target=one) for _ in range(many)]
    for thread in threads:
        thread.start()
    while len(answers) < many:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    return sum(answers)


print("threads", of_threads(), flush=True)

# And once nobody has any, a program may have one as before. The last of those above may be there for a moment yet.
pid = os.fork()
if pid == 0:
    until = time.monotonic() + 30
    while not (done := by_seccomp()) and time.monotonic() < until:
        time.sleep(0.1)
    print("one afterwards", "done" if done else said(), flush=True)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("one for all threads", "done" if by_seccomp(ALL_THREADS) else said(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
