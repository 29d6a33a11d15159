"""Four processes listen on one port with SO_REUSEPORT; all forty connections are served."""

from _case import *


def listening(port):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((V4, port))
    sock.listen(64)
    return sock


holder = socket.socket()
holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
holder.bind((V4, 0))
port = holder.getsockname()[1]
ready, tell = os.pipe()


def serve(number):
    server = listening(port)
    os.write(tell, b".")
    while True:
        accepted, _ = server.accept()
        asked = receive(accepted, 1)
        if asked == b"!":
            return 0
        accepted.sendall(b"%d" % number)
        accepted.close()


workers = [fork(lambda number=number: serve(number)) for number in range(4)]
for _ in workers:
    os.read(ready, 1)
answers = set()
served = 0
for _ in range(40):
    client = socket.create_connection((V4, port))
    client.sendall(b"?")
    answer = receive(client, 2)
    served += answer in (b"0", b"1", b"2", b"3")
    answers.add(answer)
    client.close()
say("served", served, "by more than one", len(answers) > 1)
other = socket.socket()
say("without the option", outcome(other.bind, (V4, port)))
for pid in workers:
    os.kill(pid, 15)
say([finished(pid) for pid in workers])
other = socket.socket()
holder.close()
