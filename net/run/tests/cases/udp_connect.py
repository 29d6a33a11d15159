"""A connected UDP socket: its names, what it takes and from whom, and another connect."""

from _case import *

for host in (V4, V6):
    client, peer, stranger = datagrams(host), datagrams(host), datagrams(host)
    say("new", outcome(client.send, b"x"), outcome(client.getpeername))
    client.connect(peer.getsockname())
    say(client.getpeername() == peer.getsockname())
    client.send(b"hello")
    say(peer.recvfrom(10)[1] == client.getsockname())
    stranger.sendto(b"not for it", client.getsockname())
    peer.sendto(b"for it", client.getsockname())
    say(client.recvfrom(100)[0])
    say("no more", outcome(client.recv, 10, socket.MSG_DONTWAIT))
    client.sendto(b"elsewhere", stranger.getsockname())
    say(stranger.recv(100))
    client.connect(stranger.getsockname())
    client.send(b"again")
    say(stranger.recv(100))
