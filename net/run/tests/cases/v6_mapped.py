"""An IPv6 socket connects, binds and sends to mapped IPv4 addresses."""

from _case import *

MAPPED = "::ffff:127.0.0.1"
with listener() as server:
    client = socket.socket(socket.AF_INET6)
    client.connect((MAPPED, server.getsockname()[1]))
    say(client.getpeername()[0], client.getsockname()[0], server.accept()[1][0])
    only = socket.socket(socket.AF_INET6)
    only.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    say("V6ONLY", outcome(only.connect, (MAPPED, server.getsockname()[1])))
server = socket.socket(socket.AF_INET6)
server.bind((MAPPED, 0))
server.listen()
say(server.getsockname()[0])
client = socket.create_connection((V4, server.getsockname()[1]))
say(server.accept()[1][0])
udp, receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), datagrams()
udp.sendto(b"hello", (MAPPED, receiver.getsockname()[1]))
say(receiver.recvfrom(10)[0])
