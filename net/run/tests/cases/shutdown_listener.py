"""shutdown of a listener: it refuses, accept says EINVAL, and it can listen again."""

from _case import *

server = listener()
address = server.getsockname()
say(outcome(server.shutdown, socket.SHUT_RD))
say("accept", outcome(server.accept))
say("connect", outcome(socket.socket().connect, address))
say("listen", outcome(server.listen), server.getsockname()[1] > 0)
client = socket.socket()
say("connect", outcome(client.connect, server.getsockname()))
say("accepted", server.accept()[1] == client.getsockname())
