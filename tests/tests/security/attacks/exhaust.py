"""Takes as much of one thing as it gets, says how much that was, and holds on to it."""
import ctypes
import os
import resource
import socket
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
MOST = 200_000


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def one_more_fork():
    if os.fork() == 0:
        time.sleep(3600)


def descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


held = []
watcher = None


def one_more_watch():
    global watcher
    watcher = watcher or check(libc.inotify_init1(0))
    path = f"/tmp/watched-{len(held)}".encode()
    open(path, "w").close()
    check(libc.inotify_add_watch(watcher, path, 0x100))


def full_pipe():
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.write(write, b"x" * 65536)
    return read, write


def shared_memory():
    # Kept by the kernel even when nobody has it mapped.
    return check(libc.shmget(0, 1 << 20, 0o1600))


KINDS = {
    "forks": one_more_fork,
    "memory": lambda: bytearray(b"x" * (1 << 20)),
    "inotify": lambda: check(libc.inotify_init1(0)),
    "watches": one_more_watch,
    "terminals": os.openpty,
    "files": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "pipes": full_pipe,
    "sockets": lambda: socket.socketpair(),
    "timers": lambda: check(libc.timerfd_create(1, 0)),
    "sysv": shared_memory,
    "shm": lambda: open("/dev/shm/full", "ab").write(b"x" * (1 << 20)),
    "memfd": lambda: os.write(os.memfd_create("m"), b"x" * (1 << 20)),
}

if __name__ == "__main__":
    kind = sys.argv[1]
    descriptors()
    count = 0
    try:
        while count < MOST:
            held.append(KINDS[kind]())
            count += 1
    except (OSError, MemoryError):
        pass
    print(kind, count, flush=True)
    time.sleep(3600)
