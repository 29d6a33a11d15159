"""Options and levels that nobody has, and lengths that do not fit."""

from _case import *

for name, sock in (
    ("tcp", socket.socket()),
    ("udp", datagrams()),
    ("tcp6", socket.socket(socket.AF_INET6)),
):
    for level in (
        socket.SOL_SOCKET,
        socket.IPPROTO_IP,
        socket.IPPROTO_IPV6,
        socket.IPPROTO_TCP,
        socket.IPPROTO_UDP,
        250,
    ):
        say(
            name,
            int(level),
            outcome(sock.setsockopt, level, 9999, 1),
            outcome(sock.getsockopt, level, 9999),
        )
    say(
        name,
        "short",
        outcome(sock.setsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE, b"\1"),
        outcome(sock.getsockopt, socket.SOL_SOCKET, socket.SO_TYPE, 1),
        outcome(sock.getsockopt, socket.SOL_SOCKET, socket.SO_TYPE, 64),
    )
