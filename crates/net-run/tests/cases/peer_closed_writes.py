"""The peer has closed: the first write may pass, then a reset makes the next ones fail."""

from _case import *

client, accepted = pair()
accepted.close()
say("end", client.recv(1))
say("first", outcome(client.send, b"x"))
say("poll", polled_until(client, "ERR+HUP"))
say("SO_ERROR", errno.errorcode.get(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0))
say("second", outcome(client.send, b"x"))
say("recv", outcome(client.recv, 1))
