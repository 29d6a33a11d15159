"""Urgent data: POLLPRI, MSG_OOB, and in line."""

from _case import *

client, accepted = pair()
say("none", outcome(accepted.recv, 1, socket.MSG_OOB))
say("sent", outcome(client.send, b"ab!", socket.MSG_OOB))
say("poll", polled_until(accepted, "PRI"))
say("peeked", outcome(accepted.recv, 1, socket.MSG_OOB | socket.MSG_PEEK))
say(
    "urgent",
    outcome(accepted.recv, 1, socket.MSG_OOB),
    "again",
    outcome(accepted.recv, 1, socket.MSG_OOB),
)
say("rest", receive(accepted, 2))
client, accepted = pair()
accepted.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
client.sendall(b"ab")
client.send(b"!", socket.MSG_OOB)
client.sendall(b"cd")
polled_until(accepted, "PRI")
say("before the mark", accepted.recv(10))
say("in line", receive(accepted, 3))
