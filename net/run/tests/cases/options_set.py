"""Options that are set come back, before connect and after, with the kernel's own rounding."""

from _case import *

S, T = socket.SOL_SOCKET, socket.IPPROTO_TCP
VALUES = [
    (S, "SO_KEEPALIVE", (1, 0, 7)),
    (S, "SO_REUSEADDR", (1, 0, 9)),
    (S, "SO_REUSEPORT", (1, 0)),
    (S, "SO_BROADCAST", (1, 0)),
    (S, "SO_OOBINLINE", (1, 0)),
    (S, "SO_RCVLOWAT", (2, 0, 1)),
    (S, "SO_PRIORITY", (3, 0)),
    (S, "SO_TYPE", (1,)),
    (S, "SO_ERROR", (1,)),
    (S, "SO_ACCEPTCONN", (1,)),
    (S, "SO_DOMAIN", (2,)),
    (S, "SO_PROTOCOL", (6,)),
    (T, "TCP_NODELAY", (1, 0, 5)),
    (T, "TCP_CORK", (1, 0)),
    (T, "TCP_KEEPIDLE", (30, 0, 40000)),
    (T, "TCP_KEEPINTVL", (7, 0)),
    (T, "TCP_KEEPCNT", (4, 0, 200)),
    (T, "TCP_SYNCNT", (3, 0)),
    (T, "TCP_LINGER2", (5, -1)),
    (T, "TCP_USER_TIMEOUT", (5000, 0)),
    (T, "TCP_DEFER_ACCEPT", (0,)),
]
client, accepted = pair()
for name, sock in (("new", socket.socket()), ("connected", client)):
    for level, option, values in VALUES:
        for value in values:
            told = outcome(sock.setsockopt, level, getattr(socket, option), value)
            back = outcome(sock.getsockopt, level, getattr(socket, option))
            say(name, option, value, told, back)
