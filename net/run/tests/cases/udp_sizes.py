"""Datagrams of many lengths, up to the largest; beyond it EMSGSIZE."""

from _case import *

for host, largest in ((V4, 65507), (V6, 65527)):
    server, client = datagrams(host), datagrams(host)
    for size in (1, 1000, 1472, 1473, 9000, 40000, largest):
        sent = os.urandom(size)
        told = outcome(client.sendto, sent, server.getsockname())
        say(host, size, told == size, server.recv(65536) == sent)
    say(outcome(client.sendto, bytes(largest + 1), server.getsockname()))
    client.connect(server.getsockname())
    say(outcome(client.send, bytes(largest + 1)))
