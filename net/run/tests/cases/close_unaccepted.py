"""A listener closes with connections that nobody accepted: their peers hear a reset."""

from _case import *

server = listener()
client = socket.create_connection(server.getsockname())
client.sendall(b"x")
say("connected", polled(client))
server.close()
say("poll", polled_until(client, "ERR+HUP"))
say(outcome(client.recv, 1))
