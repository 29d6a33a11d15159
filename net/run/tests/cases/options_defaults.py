"""Options of new sockets, of each kind and family: what they are before anybody sets them."""

from _case import *

SOCKET = (
    "SO_TYPE SO_DOMAIN SO_PROTOCOL SO_ACCEPTCONN SO_ERROR SO_KEEPALIVE SO_REUSEADDR SO_REUSEPORT "
    "SO_BROADCAST SO_OOBINLINE SO_DONTROUTE SO_RCVLOWAT SO_SNDLOWAT SO_DEBUG SO_PRIORITY SO_MARK "
    "SO_PASSCRED SO_TIMESTAMP SO_INCOMING_CPU SO_BUSY_POLL".split()
)
NUMBERS = {"SO_TIMESTAMP": 29, "SO_BUSY_POLL": 46, "SO_PASSCRED": 16}
TCP = (
    "TCP_NODELAY TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT TCP_LINGER2 TCP_DEFER_ACCEPT "
    "TCP_WINDOW_CLAMP TCP_QUICKACK TCP_USER_TIMEOUT TCP_FASTOPEN".split()
)
IP = "IP_TTL IP_TOS IP_OPTIONS IP_HDRINCL IP_MULTICAST_TTL IP_MULTICAST_LOOP IP_RECVTOS".split()


def show(sock, level, option, number=None):
    if number is None:
        number = NUMBERS.get(option, getattr(socket, option, None))
    say("  ", option, "absent" if number is None else outcome(sock.getsockopt, level, number))


for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        sock = socket.socket(family, kind)
        say(family.name, kind.name)
        for option in SOCKET:
            show(sock, socket.SOL_SOCKET, option)
        if kind == socket.SOCK_STREAM:
            for option in TCP:
                show(sock, socket.IPPROTO_TCP, option)
        if family == socket.AF_INET:
            for option in ("IP_TTL", "IP_TOS"):
                show(sock, socket.IPPROTO_IP, option)
        else:
            show(sock, socket.IPPROTO_IPV6, "IPV6_V6ONLY")
            show(sock, socket.IPPROTO_IPV6, "IPV6_UNICAST_HOPS")
            show(sock, socket.IPPROTO_IPV6, "IPV6_TCLASS")
