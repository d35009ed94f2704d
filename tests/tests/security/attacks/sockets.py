"""Opens a socket of each family and kind that is told as FAMILY:TYPE:PROTOCOL, and prints what came of it."""

import ctypes
import errno
import sys

libc = ctypes.CDLL(None, use_errno=True)
for wanted in sys.argv[1:]:
    family, kind, protocol = map(int, wanted.split(":"))
    for name, call in [("socket", lambda: libc.socket(family, kind, protocol)),
                       ("pair", lambda: libc.socketpair(family, kind, protocol, (ctypes.c_int * 2)()))]:
        print(name, wanted, "done" if call() >= 0 else errno.errorcode[ctypes.get_errno()])
