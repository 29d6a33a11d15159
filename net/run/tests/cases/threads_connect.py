"""Sixteen threads connect and ask at once, each through its own connection."""

import threading

from _case import *

server = listener(backlog=64)
answers = []


def ask(number):
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(b"%02d" % number)
        answers.append(int(receive(client, 4)))


threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
for thread in threads:
    thread.start()
for _ in threads:
    accepted, _ = server.accept()
    accepted.sendall(b"%4d" % (int(receive(accepted, 2)) * 100))
for thread in threads:
    thread.join()
say(sorted(answers))
