"""Gives names to Unix sockets.

named_sockets.py bind DIR            in every way, in this directory; what came of each, and whether the address is the one that was asked for
named_sockets.py race PATH COUNT     PATH with a number behind it, so often; prints how many were made and how many were refused
"""
import errno
import os
import socket
import sys

what, place = sys.argv[1], sys.argv[2]


def came(act):
    try:
        act()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]


def bound(address, kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    one.bind(address)
    return one


def same_address(address):
    """And whoever connects to it is heard."""
    one = bound(address)
    one.listen()
    other = socket.socket(socket.AF_UNIX)
    other.connect(address)
    assert one.getsockname() == address == other.getpeername(), one.getsockname()


def by_descriptor():
    there = os.open(place, os.O_PATH)
    one = bound(f"/proc/self/fd/{there}/by-descriptor")
    one.listen()
    socket.socket(socket.AF_UNIX).connect(f"{place}/by-descriptor")


def in_chroot():
    child = os.fork()
    if child == 0:
        try:
            os.chroot(place)
            same_address("/in-chroot")
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, "")


def moved(how):
    """From a directory of the sandbox's own: beside the one that is tried, if that is one."""
    around = os.path.dirname(place) if what == "bind" and os.access(os.path.dirname(place), os.W_OK) else "/tmp"
    free = bound(f"{around}/free-{os.getpid()}-{how.__name__}")
    how(free.getsockname(), f"{place}/{how.__name__}")


if what == "bind":
    for name, kind in [("stream", socket.SOCK_STREAM), ("datagram", socket.SOCK_DGRAM), ("packet", socket.SOCK_SEQPACKET)]:
        print(name, came(lambda: bound(f"{place}/{name}", kind)))
    link = f"/tmp/link-{os.getpid()}"
    os.symlink(place, link)
    os.chdir(place)
    for name, address in [("absolute", f"{place}/absolute"), ("relative", "relative"), ("dotted", "./dotted"),
                          ("doubled", f"{place}//doubled"), ("linked", f"{link}/linked"),
                          ("parent", f"../{os.path.basename(place)}/parent")]:
        print(name, came(lambda: same_address(address)))
    print("descriptor", came(by_descriptor))
    print("longest", came(lambda: bound("x" * 107)))
    print("rename", came(lambda: moved(os.rename)))
    print("link", came(lambda: moved(os.link)))
    if os.getuid() == 0:
        print("chroot", came(in_chroot))
else:
    answers = [came(lambda: bound(f"{place}{number}")) for number in range(int(sys.argv[3]))]
    print(answers.count("done"), answers.count("EPERM"))
