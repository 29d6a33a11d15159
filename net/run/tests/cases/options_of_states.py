"""SO_ACCEPTCONN, SO_TYPE, SO_DOMAIN, SO_PROTOCOL and SO_ERROR of listeners and both ends."""

from _case import *

for host in (V4, V6):
    server = listener(host)
    client, accepted = pair(host)
    for name, sock in (("listener", server), ("client", client), ("accepted", accepted)):
        say(
            host,
            name,
            *(
                sock.getsockopt(socket.SOL_SOCKET, getattr(socket, option))
                for option in ("SO_TYPE", "SO_DOMAIN", "SO_PROTOCOL", "SO_ACCEPTCONN", "SO_ERROR")
            )
        )
udp = datagrams()
say(
    "udp",
    *(
        udp.getsockopt(socket.SOL_SOCKET, getattr(socket, option))
        for option in ("SO_TYPE", "SO_DOMAIN", "SO_PROTOCOL", "SO_ACCEPTCONN", "SO_ERROR")
    )
)
