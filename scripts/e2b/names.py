"""A name server for one domain: every name below it is this machine. `names.py ADDRESS DOMAIN`; other names are not there."""

import socket
import struct
import sys


def answer(query, domain):
    """The question as it came; an A record of loopback where it asks for one of the domain's."""
    end = 12
    labels = []
    while query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]].decode("ascii", "replace").lower())
        end += 1 + query[end]
    question = query[12 : end + 5]
    kind = struct.unpack("!H", query[end + 1 : end + 3])[0]
    is_ours = ".".join(labels).endswith(domain)
    record = b"\xc0\x0c" + struct.pack("!HHIH4B", 1, 1, 1, 4, 127, 0, 0, 1) if is_ours and kind == 1 else b""
    flags = 0x8180 | (0 if is_ours else 3)
    return query[:2] + struct.pack("!HHHHH", flags, 1, 1 if record else 0, 0, 0) + question + record


def main(address, domain):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind((address, 53))
        while True:
            query, peer = door.recvfrom(512)
            try:
                door.sendto(answer(query, domain), peer)
            except (IndexError, struct.error):
                pass  # no question that can be read


main(*sys.argv[1:])
