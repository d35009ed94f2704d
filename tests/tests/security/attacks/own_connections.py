# Connects as many sockets with each other as the first argument says, each way of them full, and holds them.
import os, resource, socket, sys, time

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
each = most // 2 - 20


def fill(many):
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    held = []
    for _ in range(many):
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
        for end in (one, other):
            end.setblocking(False)
            try:
                while True:
                    end.send(b"x" * 65536)
            except BlockingIOError:
                held.append(end)
    return held


left, told, processes = int(sys.argv[1]), os.pipe(), 0
while left > 0:
    many, left, processes = min(left, each), left - each, processes + 1
    if os.fork() == 0:
        held = fill(many)
        os.write(told[1], b".")
        time.sleep(10000)
for _ in range(processes):
    os.read(told[0], 1)
print("held", flush=True)
time.sleep(10000)
