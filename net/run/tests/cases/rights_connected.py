"""A connection handed to another process, and back to this one, over a Unix socket."""

import array

from _case import *

client, accepted = pair()
here, there = socket.socketpair()


def serve():
    here.close()
    accepted.close()
    _, descriptors, _, _ = socket.recv_fds(there, 10, 1)
    got = socket.socket(fileno=descriptors[0])
    got.sendall(receive(got, 5)[::-1] + b" from " + got.getsockname()[0].encode())
    socket.send_fds(there, [b"back"], [got.fileno()])
    return 0


pid = fork(serve)
there.close()
socket.send_fds(here, [b"take"], [accepted.fileno()])
accepted.close()
client.sendall(b"hello")
say(receive(client, 20))
_, descriptors, _, _ = socket.recv_fds(here, 10, 1)
say(finished(pid))
again = socket.socket(fileno=descriptors[0])
say(again.getpeername() == client.getsockname())
again.sendall(b"back again")
again.close()
say(receive(client, 100))
