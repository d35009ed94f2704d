"""Asks the kernel to change links, addresses, routes, rules, neighbours and queues, by messages with nothing in them. `apart`
does it in a network namespace of its own."""

import ctypes
import errno
import socket
import struct
import sys

if sys.argv[1:] == ["apart"]:
    assert ctypes.CDLL(None).unshare(0x40000000) == 0
CHANGES = {
    16: "new link", 17: "delete link", 19: "set link", 20: "new address", 21: "delete address", 24: "new route",
    25: "delete route", 28: "new neighbour", 29: "delete neighbour", 32: "new rule", 33: "delete rule", 36: "new queue",
    37: "delete queue", 40: "new class of traffic", 41: "delete class of traffic", 44: "new filter of traffic",
    45: "delete filter of traffic", 48: "new action", 67: "set neighbour table", 79: "set bridge", 84: "new multicast address",
    88: "new namespace id", 100: "new chain", 104: "new next hop",
}
REQUEST_AND_ACK, CREATE = 0x5, 0x400
one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
one.settimeout(5)
for number, name in CHANGES.items():
    # A header and a body of zeros, as long as the longest that any of them begins with.
    body = bytes(28)
    one.send(struct.pack("=IHHII", 16 + len(body), number, REQUEST_AND_ACK | CREATE, number, 0) + body)
    answer = one.recv(65536)
    code = -struct.unpack_from("=i", answer, 16)[0]
    print(name, "done" if code == 0 else errno.errorcode.get(code, "E%d" % code))
