"""Control messages about datagrams, received: IP_PKTINFO, IP_RECVTTL, IP_RECVTOS and IPv6's own; room
for some of them, for a part of one, and for none.
"""

import struct

from _case import *

SO_TIMESTAMP = 29
IP_PKTINFO, IP_RECVTTL, IP_TTL, IP_RECVTOS, IP_TOS = 8, 12, 2, 13, 1
KINDS = {
    V4: (socket.IPPROTO_IP, (IP_PKTINFO, IP_RECVTTL, IP_RECVTOS), IP_TTL, IP_TOS),
    V6: (
        socket.IPPROTO_IPV6,
        (socket.IPV6_RECVPKTINFO, socket.IPV6_RECVHOPLIMIT, socket.IPV6_RECVTCLASS),
        socket.IPV6_UNICAST_HOPS,
        socket.IPV6_TCLASS,
    ),
}


def shown(kind, value):
    """An address and an interface in words, a number as one."""
    if (kind, len(value)) == (IP_PKTINFO, 12):
        index, local, to = struct.unpack("I4s4s", value)
        name = socket.if_indextoname(index)
        return kind, name, socket.inet_ntoa(local), socket.inet_ntoa(to)
    if (kind, len(value)) == (socket.IPV6_PKTINFO, 20):
        to, index = struct.unpack("16sI", value)
        return kind, socket.if_indextoname(index), socket.inet_ntop(socket.AF_INET6, to)
    return kind, value.hex()


def tell(title, server, room, flags=0):
    data, control, flags, _ = server.recvmsg(100, room, flags)
    say(title, data, [(level, *shown(kind, value)) for level, kind, value in control], flags)


for host, (level, wanted, hops, kind) in KINDS.items():
    server, client = datagrams(host), datagrams(host)
    name = server.getsockname()
    client.sendto(b"unasked", name)
    tell("unasked", server, 1000)
    for option in wanted:
        server.setsockopt(level, option, 1)
        say(option, server.getsockopt(level, option))
    client.sendto(b"all", name)
    tell("all", server, 1000)
    client.setsockopt(level, hops, 17)
    client.setsockopt(level, kind, 0x48)
    client.sendto(b"set", name)
    tell("set", server, 1000)
    client.connect(name)
    client.send(b"plainly")
    tell("plainly", server, 1000)
    client.sendmsg([b"by sendmsg"])
    tell("by sendmsg", server, 1000)
    for room in (0, 1, 15, 16, 17, 20, 24, 28, 32, 36, 40, 47, 48, 60, 64, 88):
        client.send(b"room")
        tell(room, server, room)
    client.send(b"peeked")
    tell("peeked", server, 1000, socket.MSG_PEEK)
    tell("taken", server, 1000)
    server.connect(client.getsockname())
    client.send(b"to a connected one")
    tell("connected", server, 1000)
    server.setsockopt(level, wanted[0], 0)
    client.send(b"less")
    tell("less", server, 1000)
server, client = datagrams(), datagrams()
server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
client.sendto(b"x", server.getsockname())
for level, kind, value in server.recvmsg(10, 100)[1]:
    seconds = struct.unpack("qq", value)[0]
    say("SO_TIMESTAMP", level, kind, abs(seconds - time.time()) < 60)
