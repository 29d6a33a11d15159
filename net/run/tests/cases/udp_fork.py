"""A UDP socket shared with a child: each datagram is read once; the child's answers come from the
same port.
"""

from _case import *

server, client = datagrams(), datagrams()


def serve():
    for _ in range(10):
        data, peer = server.recvfrom(100)
        server.sendto(data[::-1], peer)
    return 0


pid = fork(serve)
right = 0
for number in range(10):
    client.sendto(b"%04d" % number, server.getsockname())
    data, peer = client.recvfrom(100)
    right += data == (b"%04d" % number)[::-1] and peer == server.getsockname()
say(right, finished(pid))
client.sendto(b"parent", server.getsockname())
say(server.recv(100))
