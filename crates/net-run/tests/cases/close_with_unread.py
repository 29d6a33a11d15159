"""close with something unread resets: the peer hears ECONNRESET instead of an end."""

from _case import *

client, accepted = pair()
client.sendall(b"never read")
until(lambda: "IN" in polled(accepted))
accepted.close()
say("poll", polled_until(client, "ERR+HUP"))
say(outcome(client.recv, 1), outcome(client.recv, 1))
