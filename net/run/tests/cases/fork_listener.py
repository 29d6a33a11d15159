"""Four children accept from one listener; each connection is served once, and by a child."""

from _case import *

server = listener(backlog=128)
address = server.getsockname()
pids = []


def serve():
    while True:
        accepted, _ = server.accept()
        asked = receive(accepted, 1)
        accepted.sendall(b"%10d" % os.getpid())
        accepted.close()
        if asked == b"!":
            return 0


pids = [fork(serve) for _ in range(4)]
server.close()
right = 0
for _ in range(60):
    with socket.create_connection(address) as client:
        client.sendall(b"?")
        right += int(receive(client, 10)) in pids
say(right)
for _ in pids:
    with socket.create_connection(address) as client:
        client.sendall(b"!")
        receive(client, 10)
say([finished(pid) for pid in pids])
say("gone", outcome(socket.socket().connect, address))
