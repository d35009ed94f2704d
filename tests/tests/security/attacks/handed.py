"""Descriptors of one sandbox in the hands of another, by the relay at DOOR.

handed.py take DOOR GO       takes what it is handed; when there is a file GO it writes to the first of it, and says what it reads there
handed.py file DOOR PATH     hands over a file that is open for writing
handed.py memory DOOR MIB    hands over so much memory
"""
import array, os, socket, sys, time

what, door, rest = sys.argv[1], sys.argv[2], sys.argv[3]
relay = socket.socket(socket.AF_UNIX)
relay.connect(door)
if what == "take":
    relay.send(b"t")
    print("waits", flush=True)
    _, control, _, _ = relay.recvmsg(1, socket.CMSG_SPACE(4))
    given = array.array("i", control[0][2])[0]
    relay.close()
    print("has", flush=True)
    while not os.path.exists(rest):
        time.sleep(0.01)
    os.pwrite(given, b"of another", 0)
    os.fsync(given)
    print(os.fstat(given).st_size, os.pread(given, 10, 0).decode(), flush=True)
    time.sleep(300)
if what == "file":
    given = os.open(rest, os.O_RDWR)
else:
    given = os.memfd_create("held")
    for _ in range(int(rest)):
        os.write(given, b"x" * (1 << 20))
relay.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [given]))])
relay.recv(1)
