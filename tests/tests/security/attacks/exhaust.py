"""Takes as much of one thing as it gets, says how much that was, and holds on to it."""
import _thread
import array
import ctypes
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
MOST = 200_000
# Of what takes the kernel longer the more there are.
FEWER = {"locks": 5_000, "signals": 50_000, "clocks": 20_000, "maps": 20_000}


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


def queue():
    return check(libc.mq_open(f"/queue-{len(held)}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None))


locked = None


def one_more_lock():
    # Locks of one byte that do not touch each other are one object of the kernel's each.
    global locked
    locked = locked or os.open("/tmp/locked", os.O_CREAT | os.O_RDWR)
    fcntl.lockf(locked, fcntl.LOCK_EX, 1, 2 * len(held))


poller = None


def one_more_polled():
    global poller
    poller = poller or select.epoll()
    event = check(libc.eventfd(0, 0))
    poller.register(event, select.EPOLLIN)


def one_more_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    check(libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), ctypes.c_void_p(len(held))))


def one_more_thread():
    _thread.stack_size(65536)
    _thread.start_new_thread(time.sleep, (3600,))


def one_more_clock():
    check(libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())))


def one_more_map():
    # Of other rights than its neighbour, so that they are not joined.
    return mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (mmap.PROT_WRITE if len(held) % 2 else 0))


def in_flight():
    # A socket in the queue of itself: open, and in nobody's table.
    one, other = socket.socketpair()
    one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [other.fileno()] * 200))])
    return one, other


KINDS = {
    "flight": in_flight,
    "names": lambda: os.mkdir(f"/dev/shm/name-{len(held)}"),
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
    "semaphores": lambda: check(libc.semget(0, 200, 0o1600)),
    "queues": queue,
    "locks": one_more_lock,
    "epoll": one_more_polled,
    "signals": one_more_signal,
    "threads": one_more_thread,
    "clocks": one_more_clock,
    "maps": one_more_map,
}

if __name__ == "__main__":
    kind = sys.argv[1]
    descriptors()
    count = 0
    try:
        while count < FEWER.get(kind, MOST):
            held.append(KINDS[kind]())
            count += 1
    except (OSError, MemoryError, RuntimeError):
        pass
    print(kind, count, flush=True)
    time.sleep(3600)
