"""The peer has closed, and a write has met its reset: what polls and options say."""

from _case import *

client, accepted = pair()
accepted.close()
say("end", client.recv(1))
say("first", outcome(client.send, b"x"))
say("poll", polled_until(client, "ERR+HUP"))
say("SO_ERROR", errno.errorcode.get(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0))
