"""A datagram longer than the buffer: its rest is gone; MSG_TRUNC tells its length."""

import ctypes

from _case import *

libc = ctypes.CDLL(None, use_errno=True)
server, client = datagrams(), datagrams()
to = server.getsockname()
client.sendto(b"abcdefgh", to)
client.sendto(b"next", to)
say(server.recv(3), server.recv(10))
client.sendto(b"abcdefgh", to)
data, _, flags, peer = server.recvmsg(3)
say(data, bool(flags & socket.MSG_TRUNC), peer == client.getsockname())
client.sendto(b"abcdefgh", to)
buffer = ctypes.create_string_buffer(3)
say(libc.recv(server.fileno(), buffer, 3, socket.MSG_TRUNC), buffer.raw)
client.sendto(b"whole", to)
say(server.recvmsg(100)[2] & socket.MSG_TRUNC)
client.sendto(b"by read", to)
say(os.read(server.fileno(), 2), outcome(server.recv, 10, socket.MSG_DONTWAIT))
