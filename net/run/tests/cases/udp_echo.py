"""Datagrams to and fro with sendto and recvfrom, each family; who sent them."""

from _case import *

for host in (V4, V6):
    server, client = datagrams(host), socket.socket(family_of(host), socket.SOCK_DGRAM)
    say("new", client.getsockname()[0], client.getsockname()[1])
    say(client.sendto(b"question", server.getsockname()))
    data, peer = server.recvfrom(100)
    say(data, peer[0], peer[1] == client.getsockname()[1], client.getsockname()[0])
    server.sendto(b"answer", peer)
    data, peer = client.recvfrom(100)
    say(data, peer == server.getsockname())
    for number in range(50):
        client.sendto(b"%d" % number, server.getsockname())
    say([int(server.recv(10)) for _ in range(50)] == list(range(50)))
