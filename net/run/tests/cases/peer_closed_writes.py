"""The peer has closed: the first write passes, then a reset makes the next ones fail."""

import signal

from _case import *


def ways():
    yield "send", lambda sock: sock.send(b"x")
    yield "sendmsg", lambda sock: sock.sendmsg([b"x", b"yz"])
    yield "write", lambda sock: os.write(sock.fileno(), b"x")
    yield "writev", lambda sock: os.writev(sock.fileno(), [b"x", b"yz"])


for name, send in ways():
    client, accepted = pair()
    accepted.close()
    say(name, "end", client.recv(1))
    say(name, "first", outcome(send, client))
    polled_until(client, "HUP")
    say(name, "second", outcome(send, client))
    say(name, "recv", outcome(client.recv, 1))

# A signal comes with the second one, unless it is not wanted.
def killed(flags):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    client, accepted = pair()
    accepted.close()
    client.recv(1)
    say("first", client.send(b"x", flags))
    polled_until(client, "HUP")
    say("second", outcome(client.send, b"x", flags))
    return 0


say("signal", child(lambda: killed(0)))
say("MSG_NOSIGNAL", child(lambda: killed(socket.MSG_NOSIGNAL)))

# Nothing passes once this end is shut, nor after a reset.
client, accepted = pair()
client.shutdown(socket.SHUT_WR)
accepted.close()
say("shut", outcome(client.send, b"x"))
client, accepted = pair()
client.sendall(b"never read")
until(lambda: "IN" in polled(accepted))
accepted.close()
polled_until(client, "ERR+HUP")
say("reset", outcome(client.send, b"x"), outcome(client.send, b"x"), outcome(client.recv, 1))

# A local socket of the program's own is what it was.
one, other = socket.socketpair()
other.close()
say("local", one.recv(1), outcome(one.send, b"x"), outcome(os.write, one.fileno(), b"x"))
