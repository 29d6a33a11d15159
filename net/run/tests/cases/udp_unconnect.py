"""connect to AF_UNSPEC frees a UDP socket from its peer, and ends a TCP connection."""

import ctypes

from _case import *

libc = ctypes.CDLL(None, use_errno=True)


def unspecified(sock):
    result = libc.connect(sock.fileno(), bytes(16), 16)
    return "ok" if result == 0 else errno.errorcode[ctypes.get_errno()]


client, peer, stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), datagrams(), datagrams()
client.bind((V4, closed_port(V4, socket.SOCK_DGRAM)))
client.connect(peer.getsockname())
say(unspecified(client), outcome(client.getpeername))
stranger.sendto(b"from anyone", client.getsockname())
say(client.recv(100))
say("new", unspecified(socket.socket()))
client, accepted = pair()
say("tcp", unspecified(client), outcome(client.getpeername))
say("peer", outcome(accepted.recv, 1))
with listener() as server:
    say("again", outcome(client.connect, server.getsockname()))
