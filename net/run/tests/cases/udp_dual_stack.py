"""A UDP socket on :: hears IPv4 as mapped addresses, and answers them."""

from _case import *

server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
server.bind(("::", 0))
port = server.getsockname()[1]
for host in (V4, V6):
    client = datagrams(host)
    client.sendto(b"hello", (host, port))
    data, peer = server.recvfrom(100)
    say(host, data, peer[0], peer[1] == client.getsockname()[1])
    server.sendto(b"answer", peer)
    data, peer = client.recvfrom(100)
    say(data, peer[0], peer[1] == port)
