"""What an accepted socket takes from its listener, and what not."""

import struct

from _case import *

server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3))
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50000)
server.bind((V4, 0))
server.listen()
server.setblocking(False)
client = socket.create_connection(server.getsockname())
polled_until(server, "IN")
descriptor, _ = server._accept()
accepted = socket.socket(fileno=descriptor)
for level, option in (
    (socket.SOL_SOCKET, "SO_KEEPALIVE"),
    (socket.IPPROTO_TCP, "TCP_NODELAY"),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE"),
    (socket.SOL_SOCKET, "SO_RCVBUF"),
    (socket.SOL_SOCKET, "SO_REUSEADDR"),
):
    say(
        option,
        accepted.getsockopt(level, getattr(socket, option)),
        client.getsockopt(level, getattr(socket, option)) if option != "SO_RCVBUF" else "",
    )
say("SO_LINGER", struct.unpack("ii", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)))
say("blocking", os.get_blocking(descriptor), "inheritable", os.get_inheritable(descriptor))
