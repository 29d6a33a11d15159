"""MSG_PEEK of datagrams: the first stays, with its sender."""

from _case import *

server, client, other = datagrams(), datagrams(), datagrams()
client.sendto(b"first", server.getsockname())
other.sendto(b"second", server.getsockname())
for _ in range(2):
    data, peer = server.recvfrom(3, socket.MSG_PEEK)
    say(data, peer == client.getsockname())
say(server.recv(100), server.recv(100, socket.MSG_PEEK), server.recv(100))
say(outcome(server.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
