"""Options of the IP layers: set, read back, wrong values refused."""

from _case import *

I, X = socket.IPPROTO_IP, socket.IPPROTO_IPV6
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    sock = socket.socket(socket.AF_INET, kind)
    for option, values in (
        ("IP_TOS", (16, 0, 46 << 2)),
        ("IP_TTL", (5, 255, 256)),
        ("IP_RECVTOS", (1,)),
        ("IP_MULTICAST_TTL", (3,)),
        ("IP_MULTICAST_LOOP", (0, 1)),
    ):
        for value in values:
            number = getattr(socket, option)
            say(
                kind.name,
                option,
                value,
                outcome(sock.setsockopt, I, number, value),
                outcome(sock.getsockopt, I, number),
            )
    sock = socket.socket(socket.AF_INET6, kind)
    for option, values in (
        ("IPV6_V6ONLY", (1, 0)),
        ("IPV6_UNICAST_HOPS", (5, -1, 256)),
        ("IPV6_TCLASS", (32, -1)),
        ("IPV6_RECVPKTINFO", (1,)),
        ("IPV6_MULTICAST_HOPS", (4,)),
    ):
        for value in values:
            number = getattr(socket, option)
            say(
                kind.name,
                option,
                value,
                outcome(sock.setsockopt, X, number, value),
                outcome(sock.getsockopt, X, number),
            )
