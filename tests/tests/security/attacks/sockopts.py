"""Sets options of sockets that lead deep into the kernel, with values that mean nothing, and prints what came of each."""

import ctypes
import errno
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
INET, INET6 = socket.AF_INET, socket.AF_INET6
STREAM, DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM

# Group: name, family, type, level, option.
OPTIONS = {
    "xtables": [
        ("replace v4", INET, DGRAM, 0, 64),
        ("counters v4", INET, DGRAM, 0, 65),
        ("replace v6", INET6, DGRAM, 41, 64),
        ("counters v6", INET6, DGRAM, 41, 65),
    ],
    "ipsec": [
        ("policy v4", INET, DGRAM, 0, 17),
        ("policy v6", INET6, DGRAM, 41, 35),
    ],
    "admin": [
        ("mark", INET, DGRAM, socket.SOL_SOCKET, 36),
        ("larger buffer than allowed", INET, DGRAM, socket.SOL_SOCKET, 33),
        ("debug", INET, DGRAM, socket.SOL_SOCKET, 1),
        ("transparent v4", INET, STREAM, 0, 19),
        ("transparent v6", INET6, STREAM, 41, 75),
        ("repair", INET, STREAM, 6, 19),
    ],
}


def call(name, value):
    print(name, "done" if value >= 0 else errno.errorcode[ctypes.get_errno()])


def options(group):
    for name, family, kind, level, option in OPTIONS[group]:
        one = socket.socket(family, kind)
        value = ctypes.c_int(1)
        call(name, libc.setsockopt(one.fileno(), level, option, ctypes.byref(value), 4))


def upper_layer():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    for name in [b"tls", b"espintcp", b"smc", b"mptcp"]:
        call(name.decode(), libc.setsockopt(one.fileno(), 6, 31, name, len(name)))
    # The level and the option are ints to the kernel: what is above them is dropped.
    number = 54 if os.uname().machine == "x86_64" else 208
    level, option = ctypes.c_ulong(6 | 1 << 32), ctypes.c_ulong(31 | 1 << 40)
    call("tls with high halves", libc.syscall(number, one.fileno(), level, option, b"tls", 3))


def urgent():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    call("send", libc.send(one.fileno(), b"x", 1, 1))
    call("sendto", libc.sendto(one.fileno(), b"x", 1, 1, None, 0))
    try:
        one.sendmsg([b"x"], [], 1)
        print("sendmsg done")
    except OSError as error:
        print("sendmsg", errno.errorcode[error.errno])


def notices():
    ends = (ctypes.c_int * 2)()
    for name, flags in [("plain", 0x80), ("close on exec", 0x80 | 0x80000), ("not blocking", 0x80 | 0x800)]:
        call(name, libc.pipe2(ends, flags))


for wanted in sys.argv[1:]:
    {"ulp": upper_layer, "urgent": urgent, "notices": notices}.get(wanted, lambda: options(wanted))()
