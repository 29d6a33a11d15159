"""Eight MiB each way at once arrive whole."""

import hashlib
import threading

from _case import *

COUNT = 8 << 20
sent = {name: os.urandom(COUNT) for name in ("client", "accepted")}
ends = dict(zip(("client", "accepted"), pair()))
received = {}


def write(name):
    ends[name].sendall(sent[name])
    ends[name].shutdown(socket.SHUT_WR)


def read(name):
    received[name] = receive(ends[name], COUNT + 1)


threads = [threading.Thread(target=work, args=(name,)) for name in ends for work in (write, read)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for name, other in (("client", "accepted"), ("accepted", "client")):
    same = hashlib.sha256(received[name]).digest() == hashlib.sha256(sent[other]).digest()
    say(name, len(received[name]), same)
