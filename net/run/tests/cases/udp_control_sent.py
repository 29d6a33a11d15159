"""Control messages about datagrams, sent: a source, a hop limit, a class; what is refused."""

import struct

from _case import *

IP_PKTINFO, IP_RECVTTL, IP_TTL, IP_RECVTOS, IP_TOS = 8, 12, 2, 13, 1
number = lambda value: struct.pack("i", value)


def got(server):
    data, control, _, peer = server.recvmsg(100, 1000)
    return data, sorted((kind, value.hex()) for _, kind, value in control), peer[0]


def sent(client, control, name):
    return outcome(client.sendmsg, [b"data"], control, 0, *([name] if name else []))


for connects in (False, True):
    server, client = datagrams(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (IP_RECVTTL, IP_RECVTOS):
        server.setsockopt(socket.IPPROTO_IP, option, 1)
    name = server.getsockname()
    if connects:
        client.connect(name)
        name = None
    v4 = lambda kind, value: (socket.IPPROTO_IP, kind, value)
    place = lambda ip: v4(IP_PKTINFO, struct.pack("I4s4s", 0, socket.inet_aton(ip), bytes(4)))
    for control in (
        [],
        [v4(IP_TTL, number(9))],
        [v4(IP_TOS, number(0x20))],
        [v4(IP_TOS, b"\x08")],
        [v4(IP_TTL, number(3)), v4(IP_TOS, number(4))],
        [place("127.0.0.1")],
    ):
        say("v4", sent(client, control, name), got(server))
    say("no hops", sent(client, [v4(IP_TTL, number(0))], name))
    say("too many", sent(client, [v4(IP_TTL, number(256))], name))
    say("short", sent(client, [v4(IP_TTL, b"x")], name))
    say("unknown", sent(client, [v4(99, number(1))], name))
    say("not its own", sent(client, [place("192.0.2.77")], name))

    server, client = datagrams(V6), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    for option in (socket.IPV6_RECVHOPLIMIT, socket.IPV6_RECVTCLASS):
        server.setsockopt(socket.IPPROTO_IPV6, option, 1)
    name = server.getsockname()
    if connects:
        client.connect(name)
        name = None
    v6 = lambda kind, value: (socket.IPPROTO_IPV6, kind, value)
    place = struct.pack("16sI", socket.inet_pton(socket.AF_INET6, V6), 0)
    for control in (
        [],
        [v6(socket.IPV6_HOPLIMIT, number(9))],
        [v6(socket.IPV6_TCLASS, number(0x20))],
        [v6(socket.IPV6_HOPLIMIT, number(5)), v6(socket.IPV6_TCLASS, number(4))],
        [v6(socket.IPV6_HOPLIMIT, number(-1))],
        [v6(socket.IPV6_PKTINFO, place)],
    ):
        say("v6", sent(client, control, name), got(server))
    say("too many", sent(client, [v6(socket.IPV6_HOPLIMIT, number(256))], name))
    say("short", sent(client, [v6(socket.IPV6_TCLASS, b"x")], name))
    say("unknown", sent(client, [v6(99, number(1))], name))
