"""Opens files below /proc by every other name that leads there, and prints for each what came of it. `write` opens them to be
written and writes nothing; `read` says how many bytes there are."""

import ctypes
import errno
import os
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
mode, files = sys.argv[1], sys.argv[2:]


def came(act):
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno]


def use(path, dir_fd=None):
    if mode == "write":
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd))
        return "done"
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return "done" if os.listdir(fd) else "EMPTY"
    return "done" if os.read(fd, 64) else "EMPTY"


def from_descriptor(file):
    dir = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    return use(file, dir_fd=dir)


def reopened(file):
    handle = os.open("/proc/" + file, os.O_PATH)
    return use("/proc/self/fd/%d" % handle)


def from_cwd(file):
    os.chdir(os.path.dirname("/proc/" + file))
    try:
        return use(os.path.basename(file))
    finally:
        os.chdir("/")


def behind_link(file):
    link = "/tmp/alias-%d" % os.getpid()
    os.symlink("/proc/" + file, link)
    try:
        return use(link)
    finally:
        os.unlink(link)


def in_jail(file):
    # In a child, which cannot come back.
    read, write = os.pipe()
    if os.fork() == 0:
        def go():
            os.chroot("/proc")
            os.chdir("/")
            return use("/" + file)
        os.write(write, came(go).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 64).decode()
    os.wait()
    return said


ways = {
    "path": lambda file: use("/proc/" + file),
    "own root": lambda file: use("/proc/self/root/proc/" + file),
    "root of a thread": lambda file: use("/proc/thread-self/root/proc/" + file),
    "root of process 1": lambda file: use("/proc/1/root/proc/" + file),
    "dots": lambda file: use("/proc/self/../self/../" + file),
    "descriptor": from_descriptor,
    "descriptor opened again": reopened,
    "working directory": from_cwd,
    "link": behind_link,
    "jail": in_jail,
}
for file in files:
    for name, way in ways.items():
        print(name, file, came(lambda: way(file)))
