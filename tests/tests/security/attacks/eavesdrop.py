"""Uses files that others may have open too: waits until somebody opens one of them, and locks others.

    watch FILE...   says `watching`, then `seen` or `nothing` once a file of the name `/tmp/asked` is there
    lock FILE...    locks each, then says `locked` and sleeps
    try FILE...     says of each whether somebody else has locked it"""

import ctypes
import fcntl
import os
import select
import sys
import time

what, names = sys.argv[1], sys.argv[2:]
if what == "watch":
    IN_OPEN = 0x20
    libc = ctypes.CDLL(None)
    events = libc.inotify_init1(0)
    for name in names:
        assert libc.inotify_add_watch(events, name.encode(), IN_OPEN) >= 0
    print("watching", flush=True)
    while not os.path.exists("/tmp/asked"):
        time.sleep(0.01)
    print("seen" if select.select([events], [], [], 0)[0] else "nothing", flush=True)
if what in ("lock", "try"):
    held = [os.open(name, os.O_RDONLY) for name in names]
    for name, file in zip(names, held):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(name, "taken")
    print("locked", flush=True)
    time.sleep(300 if what == "lock" else 0)
