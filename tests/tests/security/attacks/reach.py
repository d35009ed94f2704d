"""Asks for a page at each WAY=HOST:PORT that it is told, and prints what came of it: `served`, or why not.

plain      a connection of its own
connect    a tunnel of the HTTP proxy
absolute   a request to the HTTP proxy
socks      SOCKS with the host as a name
number     SOCKS with the host as an address
"""

import ipaddress
import socket
import struct
import sys

REQUEST = b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"


def proxy(port):
    return socket.create_connection(("127.0.0.1", port), 50)


def socks(kind, where, port):
    s = proxy(65503)
    s.sendall(b"\x05\x01\x00\x05\x01\x00" + bytes([kind]) + where + struct.pack(">H", port))
    if s.recv(2, socket.MSG_WAITALL) != b"\x05\x00":
        raise OSError("no SOCKS")
    answer = s.recv(10, socket.MSG_WAITALL)
    if answer[1:2] != b"\x00":
        raise OSError("reply %d" % answer[1])
    return s


def reach(way, host, port):
    bare = host.strip("[]")
    head = host.encode() if port == 80 else b"%s:%d" % (host.encode(), port)
    if way == "plain":
        s = socket.create_connection((bare, port), 50)
    elif way == "connect":
        s = proxy(65502)
        place = b"%s:%d" % (host.encode(), port)
        s.sendall(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (place, place))
        answer = s.recv(4096)
        if b" 200 " not in answer:
            return answer.split(b"\r\n")[0].decode()
    elif way == "absolute":
        s = proxy(65502)
        s.sendall(b"GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (head, head))
    elif way == "socks":
        s = socks(3, bytes([len(bare)]) + bare.encode(), port)
    elif way == "number":
        address = ipaddress.ip_address(bare)
        s = socks(1 if address.version == 4 else 4, address.packed, port)
    if way != "absolute":
        s.sendall(REQUEST % head)
    answer = b""
    while piece := s.recv(65536):
        answer += piece
    return "served" if answer.endswith(b"served") else answer.split(b"\r\n")[0].decode(errors="replace")


for target in sys.argv[1:]:
    way, place = target.split("=", 1)
    host, port = place.rsplit(":", 1)
    try:
        said = reach(way, host, int(port))
    except (OSError, ValueError) as error:
        said = f"{type(error).__name__} {error}"
    print(target, said or "nothing", flush=True)
