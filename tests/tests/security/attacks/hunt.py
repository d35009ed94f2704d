"""Looks for a file of the host by every name that might lead there, and prints each that does.

Arguments: the file's path on the host, what it holds, a directory to work in, and through whose doors in /proc it goes:
`all` or `own`. On the host only its own, since other processes there are nobody's to look into."""

import os
import stat
import sys

wanted, content, work, whose = sys.argv[1:5]
others = filter(str.isdigit, os.listdir("/proc")) if whose == "all" else []
os.makedirs(work, exist_ok=True)
up = "../" * 40


def names():
    yield "path", wanted
    yield "up", work + "/" + up + wanted
    yield "dots", "/.././..//" + wanted
    for process in ["self", "thread-self", *others]:
        for door in ["root", "cwd", "cwd/" + up, "task/%s/root" % process, "root/" + up]:
            yield "door", "/proc/%s/%s/%s" % (process, door, wanted)
        try:
            descriptors = os.listdir("/proc/%s/fd" % process)
        except OSError:
            continue
        for number in descriptors:
            yield "descriptor", "/proc/%s/fd/%s" % (process, number)
            yield "descriptor", "/proc/%s/fd/%s/%s%s" % (process, number, up, wanted)
    for number, text in enumerate([wanted, up + wanted, "/proc/1/root" + wanted, "/proc/self/root" + up + wanted]):
        link = "%s/link%d" % (work, number)
        if not os.path.lexists(link):
            os.symlink(text, link)
        yield "symlink", link
    for number, way in enumerate([wanted, "/proc/1/root" + wanted, "/proc/self/root" + wanted]):
        link = "%s/hard%d" % (work, number)
        try:
            os.link(way, link)
        except OSError:
            continue
        yield "hardlink", link


for kind, name in names():
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            continue
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        found = os.read(file, 4096).decode(errors="replace")
        os.close(file)
    except OSError:
        continue
    if content in found:
        print(kind, name)
for descriptor in range(256):
    for way in [wanted.lstrip("/"), up + wanted.lstrip("/")]:
        try:
            os.close(os.open(way, os.O_RDONLY | os.O_NONBLOCK, dir_fd=descriptor))
            print("inherited", descriptor)
        except OSError:
            pass
