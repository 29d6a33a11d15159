"""connect where it cannot be: connected already, a listener, no address."""

from _case import *

client, accepted = pair()
with listener() as server:
    say("connected", outcome(client.connect, server.getsockname()))
    say("accepted", outcome(accepted.connect, server.getsockname()))
    say("listening", outcome(server.connect, server.getsockname()))
sock = socket.socket()
say("unconnected send", outcome(sock.send, b"x"))
say("unconnected recv", outcome(sock.recv, 1))
say("unconnected peek", outcome(sock.recv, 1, socket.MSG_PEEK))
say(
    "sendto with an address on a connected one",
    outcome(client.sendto, b"x", accepted.getsockname()),
)
say(outcome(accepted.recv, 10))
