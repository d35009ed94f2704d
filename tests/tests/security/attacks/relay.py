"""A program of the host that hands on what it is given: it stands for whatever lets descriptors pass from one sandbox to another.

relay.py DOOR    who sends descriptors with `g` gives them, and who sends `t` takes them; the giver hears when the taker is done
"""
import array, os, socket, sys

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
around = os.stat(os.path.dirname(sys.argv[1]))
os.chown(sys.argv[1], around.st_uid, around.st_gid)  # what belongs to nobody inside cannot be connected to
listener.listen()
print("listens", flush=True)
while True:
    sides = {}
    while len(sides) < 2:
        door, _ = listener.accept()
        said, control, _, _ = door.recvmsg(1, socket.CMSG_SPACE(16 * 4))
        given = array.array("i")
        for _, _, data in control:
            given.frombytes(data)
        sides[said] = (door, given)
    (giver, given), (taker, _) = sides[b"g"], sides[b"t"]
    taker.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
    for number in given:
        os.close(number)
    taker.recv(1)
    giver.close()
