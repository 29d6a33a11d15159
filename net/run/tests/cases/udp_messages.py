"""sendmsg and recvmsg with names and several pieces; IP_PKTINFO and IP_RECVTTL in control
messages.
"""

import struct

from _case import *

IP_PKTINFO = 8
server, client = datagrams(), datagrams()
say(client.sendmsg([b"one", b"two"], [], 0, server.getsockname()))
first, second = bytearray(2), bytearray(10)
count, control, flags, peer = server.recvmsg_into([first, second])
say(count, bytes(first), bytes(second[: count - 2]), control, flags, peer == client.getsockname())
server.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
client.sendto(b"x", server.getsockname())
data, control, flags, peer = server.recvmsg(10, 1000)
for level, kind, value in control:
    index, local, destination = struct.unpack("i4s4s", value)
    say(
        level,
        kind,
        socket.if_indextoname(index),
        socket.inet_ntoa(local),
        socket.inet_ntoa(destination),
    )
server.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 0)
server.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTTL if hasattr(socket, "IP_RECVTTL") else 12, 1)
client.sendto(b"x", server.getsockname())
say([(level, kind, value[0]) for level, kind, value in server.recvmsg(10, 1000)[1]])
