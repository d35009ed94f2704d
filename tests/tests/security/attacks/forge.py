"""Takes a mount of one sandbox off from another, and puts files of its own in its place.

forge.py take DOOR NAME    is handed a directory by the relay at DOOR, and removes the directory NAME in it
forge.py give DOOR         hands over the root directory, in which everybody may do anything then
forge.py proc TARGET UID   makes a /proc in which everybody is UID, and each descriptor of theirs is TARGET
"""
import array, os, socket, sys

what, rest = sys.argv[1], sys.argv[2:]
if what == "take":
    door = socket.socket(socket.AF_UNIX)
    door.connect(rest[0])
    door.send(b"t")
    print("waits", flush=True)
    _, control, _, _ = door.recvmsg(1, socket.CMSG_SPACE(4))
    os.rmdir(rest[1], dir_fd=array.array("i", control[0][2])[0])
    print("taken", flush=True)
elif what == "give":
    os.chmod("/", 0o777)
    door = socket.socket(socket.AF_UNIX)
    door.connect(rest[0])
    root = array.array("i", [os.open("/", os.O_RDONLY)])
    door.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, root)])
    door.recv(1)  # until the other side has done it
else:
    target, uid = rest
    os.makedirs("/proc/self/fd")
    for number in range(40):
        os.symlink(target, f"/proc/self/fd/{number}")
    ids = "\t".join([uid] * 4)
    for process in range(2, 600):
        here = f"/proc/{process}"
        os.mkdir(here)
        os.symlink("/", here + "/root")
        os.symlink("/", here + "/cwd")
        with open(here + "/status", "w") as status:
            status.write(f"Name:\tx\nUmask:\t0022\nUid:\t{ids}\nGid:\t{ids}\nGroups:\t{uid} \nCapEff:\t0000000000000000\n")
