"""Eight threads wait in accept and eight in recv at once; other calls of the process go on."""

import threading

from _case import *

server = listener()
pairs = [pair() for _ in range(8)]
taken, read = [], []


def accept():
    server.accept()
    taken.append(1)


threads = [threading.Thread(target=accept) for _ in range(8)]
threads += [threading.Thread(target=lambda end=end: read.append(end.recv(10))) for _, end in pairs]
for thread in threads:
    thread.start()
time.sleep(0.1)
say("others go on", socket.socket().getsockname(), len(taken), len(read))
clients = [socket.create_connection(server.getsockname()) for _ in range(8)]
for client, _ in pairs:
    client.sendall(b"x")
for thread in threads:
    thread.join()
say(len(taken), read == [b"x"] * 8)
