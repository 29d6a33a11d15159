"""MSG_TRUNC on a stream throws away what it counts."""

import ctypes

from _case import *

libc = ctypes.CDLL(None, use_errno=True)
client, accepted = pair()
client.sendall(b"abcdef")
until(lambda: "IN" in polled(accepted))
say(libc.recv(accepted.fileno(), None, 4, socket.MSG_TRUNC))
say(accepted.recv(10))
