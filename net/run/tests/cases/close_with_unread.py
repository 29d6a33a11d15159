"""close with something unread resets: the peer hears ECONNRESET instead of an end."""

from _case import *

client, accepted = pair()
client.sendall(b"never read")
until(lambda: "IN" in polled(accepted))
accepted.close()
say("poll", polled_until(client, "ERR+HUP"))
say(outcome(client.recv, 1), outcome(client.recv, 1))

# Nobody has read of it yet: the socket is none of a peer's any more.
client, accepted = pair()
client.sendall(b"never read")
until(lambda: "IN" in polled(accepted))
accepted.close()
polled_until(client, "ERR+HUP")
say("peer", outcome(client.getpeername), "SO_ERROR", client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
