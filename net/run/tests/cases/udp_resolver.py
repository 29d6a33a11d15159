"""Thirty questions from thirty random ports at once to one server, as resolvers ask; each gets its
own answer.
"""

import threading

from _case import *

server = datagrams()


def serve():
    for _ in range(30):
        data, peer = server.recvfrom(512)
        server.sendto(data[::-1], peer)


thread = threading.Thread(target=serve)
thread.start()
asking = []
for number in range(30):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.connect(server.getsockname())
    sock.send(b"question %02d" % number)
    asking.append(sock)
right = 0
for number, sock in enumerate(asking):
    polled_until(sock, "IN", select.POLLIN)
    right += sock.recv(512) == (b"question %02d" % number)[::-1]
    sock.close()
thread.join()
say(right)
