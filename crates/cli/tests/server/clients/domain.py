"""The same areas by a domain: `python domain.py AREA`. What a name server would do is done here: every name below it is this
machine."""

import os
import runpy
import socket
import sys

DOMAIN = os.environ["E2B_DOMAIN"].split(":")[0]
found = socket.getaddrinfo


def here(host, *rest, **more):
    name = host.decode() if isinstance(host, bytes) else host
    return found("127.0.0.1" if name and name.endswith(DOMAIN) else host, *rest, **more)


socket.getaddrinfo = here
runpy.run_path(os.path.join(os.path.dirname(__file__), "sync.py"), run_name="__main__")
