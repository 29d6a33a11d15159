"""Two sockets with SO_REUSEADDR bind one port; the second listen is refused."""

from _case import *

first, second = socket.socket(), socket.socket()
for sock in (first, second):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
first.bind((V4, 0))
say("second bind", outcome(second.bind, first.getsockname()))
say("first listen", outcome(first.listen))
say("second listen", outcome(second.listen))
first.close()
say("second listen, first closed", outcome(second.listen))
client = socket.socket()
say(outcome(client.connect, second.getsockname()))
