"""Puts bytes where no process holds them: into queues of the kernel. Says how many mebibytes it got rid of, and waits."""
import ctypes
import errno
import os
import resource
import socket
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
BLOCK = b"x" * (1 << 20)
held = []


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def send_all(sender, block=BLOCK):
    """As much as the queue takes."""
    sender.setblocking(False)
    sent = 0
    try:
        while True:
            sent += sender.send(block)
    except (BlockingIOError, ConnectionRefusedError):
        return sent
    except OSError as error:
        if error.errno in (errno.ENOBUFS, errno.ENOMEM):
            return sent
        raise


listener = None


def tcp():
    global listener
    if not listener:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    one.settimeout(2)
    try:
        one.connect(listener.getsockname())
        listener.settimeout(2)
        other, _ = listener.accept()
    except OSError:
        return 0
    held.append((one, other))
    return send_all(one)


def udp():
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    sender.setblocking(False)
    for _ in range(40):
        try:
            sender.send(b"x" * 16000)
        except OSError:
            break
    held.append((receiver, sender))
    return struct.unpack("9I", receiver.getsockopt(socket.SOL_SOCKET, 55, 36))[0]  # SO_MEMINFO


def unix():
    one, other = socket.socketpair()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    held.append((one, other))
    return send_all(one)


def pipe():
    read, write = os.pipe()
    os.set_blocking(write, False)
    held.append((read, write))
    return os.write(write, b"x" * 65536)


def shared(size):
    segment = check(libc.shmget(0, size, 0o1600))
    at = libc.shmat(segment, None, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        raise OSError(errno.ENOMEM, "refused")
    ctypes.memset(at, 120, size)
    libc.shmdt(ctypes.c_void_p(at))
    return size


def messages():
    queue = check(libc.msgget(0, 0o1600))
    sent = 0
    while libc.msgsnd(queue, struct.pack("l", 1) + b"x" * 8000, 8000, 0o4000) == 0:
        sent += 8000
    return sent


def netlink():
    """Answers about the loopback that nobody reads."""
    asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    get_link = struct.pack("=IHHIIBxHiII", 32, 18, 1, 0, 0, 0, 0, 1, 0, 0)
    held.append(asking)
    waiting = -1
    # What does not fit is dropped, and nobody says so.
    while waiting < (more := struct.unpack("9I", asking.getsockopt(socket.SOL_SOCKET, 55, 36))[0]):  # SO_MEMINFO
        waiting = more
        asking.send(get_link * 64)
    return waiting


def begun():
    """A datagram that is never sent."""
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.connect(("127.0.0.1", 9))
    held.append(one)
    return sum(one.send(b"x" * 13000, socket.MSG_MORE) for _ in range(5))


def notices():
    """When each datagram was sent, with all of it: asked for by a control message."""
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    asks = [(socket.SOL_SOCKET, 37, struct.pack("I", 2 | 256))]  # SO_TIMESTAMPING: by software, and in the queue
    held.append(one)
    for _ in range(60):
        try:
            one.sendmsg([b"x" * 60000], asks, 0, ("127.0.0.1", 9))
        except (ConnectionRefusedError, BlockingIOError):
            pass
    return struct.unpack("9I", one.getsockopt(socket.SOL_SOCKET, 55, 36))[0]  # SO_MEMINFO


def pending():
    """Connections that nobody accepts, as many as wait at one more socket that listens."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    held.append(listener)
    sent = 0
    while sent < 64 << 20:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one.settimeout(0.01)
        try:
            one.connect(listener.getsockname())
        except OSError:
            return sent
        held.append(one)
        while more := send_all(one):
            sent += more
            time.sleep(0.001)
    return sent


KINDS = {
    "begun": begun,
    "netlink": netlink,
    "notices": notices,
    "pending": pending,
    "tcp": tcp,
    "udp": udp,
    "unix": unix,
    "pipe": pipe,
    "shared": lambda: shared(1 << 20),
    "small": lambda: shared(4096),
    "messages": messages,
}

if __name__ == "__main__":
    kind, most = sys.argv[1], int(sys.argv[2]) << 20
    if sys.argv[3:] == ["apart"]:
        # In a network of its own, whose loopback is up: what no sandbox bounds.
        check(libc.unshare(0x40000000))
        import fcntl

        fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH22x", b"lo", 1))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    total, fruitless = 0, 0
    try:
        while total < most and fruitless < 20:
            more = KINDS[kind]()
            fruitless = 0 if more else fruitless + 1
            total += more
    except (OSError, MemoryError):
        pass
    print(total >> 20, flush=True)
    if len(sys.argv) < 4:
        time.sleep(3600)
