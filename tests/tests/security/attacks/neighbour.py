"""Talks to what somebody else has: an abstract socket, a port, a process.

    listen NAME       an abstract socket and a TCP port; prints the port, then answers until it is ended
    reach NAME PORT   connects to both
    processes MARK    prints each process whose command line, environment or name holds the mark; of those that are
                      named after it, if there are any
    signal PID...     sends signal 0 by every call there is"""

import ctypes
import errno
import os
import signal
import socket
import sys


def came(act):
    try:
        act()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]


what, rest = sys.argv[1], sys.argv[2:]
if what == "listen":
    unix, tcp = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    unix.bind("\0" + rest[0])
    unix.listen()
    print(tcp.getsockname()[1], flush=True)
    signal.pause()
if what == "reach":
    print("abstract socket", came(lambda: socket.socket(socket.AF_UNIX).connect("\0" + rest[0])))
    print("port", came(lambda: socket.create_connection(("127.0.0.1", int(rest[1])), 5)))
if what == "processes":
    for process in rest[1:] or filter(str.isdigit, os.listdir("/proc")):
        for file in ["cmdline", "environ", "comm", "status", "cgroup", "mountinfo"]:
            try:
                with open("/proc/%s/%s" % (process, file), "rb") as text:
                    if rest[0].encode() in text.read() and int(process) != os.getpid():
                        print("found", process, file)
            except OSError:
                pass
    print("looked")
if what == "signal":
    libc = ctypes.CDLL(None, use_errno=True)
    siginfo = (ctypes.c_char * 128)()
    for process in map(int, rest):
        def pidfd():
            signal.pidfd_send_signal(os.pidfd_open(process), 0)

        def tgkill():
            if libc.tgkill(process, process, 0):
                raise OSError(ctypes.get_errno(), "")

        def priority():
            os.setpriority(os.PRIO_PROCESS, process, -1)

        def affinity():
            os.sched_setaffinity(process, os.sched_getaffinity(process))

        for name, act in [("kill", lambda: os.kill(process, 0)), ("pidfd", pidfd), ("tgkill", tgkill),
                          ("priority", priority), ("affinity", affinity)]:
            print(name, process, came(act))
