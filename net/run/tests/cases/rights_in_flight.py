"""A connection lives on in a message that nobody has taken; it ends when the message is thrown
away.
"""

from _case import *

client, accepted = pair()
here, there = socket.socketpair()
socket.send_fds(here, [b"x"], [accepted.fileno()])
accepted.close()
client.sendall(b"kept")
say("open", outcome(client.recv, 1, socket.MSG_DONTWAIT))
here.close()
there.close()
until(lambda: outcome(client.recv, 1, socket.MSG_DONTWAIT) != "EAGAIN", 3)
say("thrown away", outcome(client.recv, 1) in (b"", "ECONNRESET"))
