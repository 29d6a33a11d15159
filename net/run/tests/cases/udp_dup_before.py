"""Descriptors of one UDP socket, duplicated and inherited before it is bound and connected."""

from _case import *

sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
twin = sock.dup()
peer = datagrams()


def begin():
    sock.bind((V4, 0))
    sock.connect(peer.getsockname())


say(child(begin))
say(twin.getpeername() == peer.getsockname(), twin.getsockname() == sock.getsockname())
twin.send(b"by the twin")
sock.send(b"by the first")
say(peer.recvfrom(20)[1] == sock.getsockname(), peer.recv(20))
peer.sendto(b"answer", sock.getsockname())
say(polled_until(twin, "IN"), twin.recv(20))
