"""Sockets that pretend to be somebody else. Prints what was tried, and `done`, `served` or the name of the error.

    rights            to answer for others, and to mark what is sent
    share PORT        the port of a listener that is not ours
    serve HOST PORT   the host's address and all of one's own; answers `forged` until it is ended
    reach SECONDS HOST PORT FROM...   a page there, from each of these (ADDRESS:PORT) at once, waiting so long"""

import concurrent.futures
import errno
import select
import socket
import sys

FREEBIND = {socket.AF_INET: (socket.IPPROTO_IP, 15), socket.AF_INET6: (socket.IPPROTO_IPV6, 78)}
TRANSPARENT = {socket.AF_INET: (socket.IPPROTO_IP, 19), socket.AF_INET6: (socket.IPPROTO_IPV6, 75)}
SO_MARK = 36


def made(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family)
    s.setsockopt(*FREEBIND[family], 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return s


def came(what, act):
    try:
        said = act() or "done"
    except OSError as error:
        said = errno.errorcode.get(error.errno, type(error).__name__)
    print(f"{what} {said}\n", end="", flush=True)


def listen(host, port):
    s = made(host)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if s.family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind((host, port))
    s.listen()
    return s


def reach(seconds, host, port, own):
    address, own_port = own.rsplit(":", 1)
    s = made(host)
    s.settimeout(float(seconds))
    s.bind((address, int(own_port)))
    s.connect((host, int(port)))
    s.sendall(b"GET / HTTP/1.0\r\n\r\n")
    return (s.makefile().read().split() or ["nothing"])[-1]


def rights():
    for family, name in [(socket.AF_INET, "v4"), (socket.AF_INET6, "v6")]:
        came("transparent " + name, lambda: socket.socket(family).setsockopt(*TRANSPARENT[family], 1))
        came("transparent by the other " + name, lambda: socket.socket(family).setsockopt(socket.IPPROTO_IP, 19, 1))
        came("mark " + name, lambda: socket.socket(family).setsockopt(socket.SOL_SOCKET, SO_MARK, 1))


what, rest = sys.argv[1], sys.argv[2:]
if what == "rights":
    rights()
elif what == "share":
    for host in ["0.0.0.0", "127.0.0.1", "::", "::1"]:
        came(host, lambda: listen(host, int(rest[0])) and None)
elif what == "serve":
    listeners = [listen(host, int(rest[1])) for host in [rest[0], "::" if ":" in rest[0] else "0.0.0.0"]]
    print("listening", flush=True)
    while True:
        for ready in select.select(listeners, [], [])[0]:
            with ready.accept()[0] as came_here:
                came_here.recv(999)
                came_here.sendall(b"forged")
elif what == "reach":
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda own: came(own, lambda: reach(*rest[:3], own)), rest[3:]))
