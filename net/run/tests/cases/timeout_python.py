"""Python's own time limits (poll before each call)."""

from _case import *

client, accepted = pair()
client.settimeout(0.05)
say("recv", outcome(client.recv, 1))
server = listener()
server.settimeout(0.05)
say("accept", outcome(server.accept))
sock = socket.socket()
sock.settimeout(2)
say("connect", outcome(sock.connect, server.getsockname()))
say(server.accept()[1] == sock.getsockname())
