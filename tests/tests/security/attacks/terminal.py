"""What a program can do to the terminal that it was given, to type something for whoever looks at it."""

import errno
import fcntl
import os
import struct
import sys
import termios

TIOCLINUX, TIOCSETD, TIOCCONS, TIOCVHANGUP = 0x541C, 0x5423, 0x541D, 0x5437


def came(act):
    try:
        act()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]


def ioctl(descriptor, request, argument=b"x"):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(argument, 16)
    # With a high half that the kernel drops, as a filter may not.
    if libc.syscall(ctypes.c_long(16 if os.uname().machine == "x86_64" else 29), ctypes.c_long(descriptor),
                    ctypes.c_ulong(request), buffer) < 0:
        raise OSError(ctypes.get_errno(), "")


if sys.argv[1] == "type":
    assert os.isatty(0)
    print("typing", came(lambda: ioctl(0, termios.TIOCSTI)))
    print("typing with a high half", came(lambda: ioctl(0, termios.TIOCSTI | 1 << 32)))
    print("the console's requests", came(lambda: ioctl(0, TIOCLINUX, b"\x02")))
    print("another line discipline", came(lambda: ioctl(0, TIOCSETD, struct.pack("i", 0))))
    print("the console's output", came(lambda: ioctl(0, TIOCCONS)))
    print("hanging it up", came(lambda: ioctl(0, TIOCVHANGUP)))
    master, slave = os.openpty()
    print("typing into one of its own", came(lambda: ioctl(slave, termios.TIOCSTI)))
if sys.argv[1] == "controlling":
    print("opening the controlling terminal", came(lambda: os.open("/dev/tty", os.O_RDWR)))
    for number in range(64):
        answer = came(lambda: os.open("/dev/pts/%d" % number, os.O_RDWR | os.O_NOCTTY))
        if answer != "ENOENT":
            print("opening terminal", number, answer)
if sys.argv[1] == "steal":
    # Of another session of this sandbox: it has a terminal, and this one takes it.
    terminal = os.open(sys.argv[2], os.O_RDWR | os.O_NOCTTY)
    if os.getpid() != os.getsid(0):
        os.setsid()
    print("taking it", came(lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)))
    print("taking it by force", came(lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 1)))
