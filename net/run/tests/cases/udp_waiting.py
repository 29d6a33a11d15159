"""Time limits, non-blocking reads, epoll and shutdown of UDP sockets."""

import select
import struct
import threading

from _case import *

server, client = datagrams(), datagrams()
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 40_000))
say("SO_RCVTIMEO", outcome(server.recv, 1), outcome(server.recvfrom, 1))
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
say("MSG_DONTWAIT", outcome(server.recv, 1, socket.MSG_DONTWAIT))
epoll = select.epoll()
epoll.register(server.fileno(), select.EPOLLIN | select.EPOLLET)
say(len(epoll.poll(0)))
for _ in range(2):
    client.sendto(b"x", server.getsockname())
    say("told", len(epoll.poll(5)), len(epoll.poll(0)))
say(server.recv(1), server.recv(1))
heard = []
client.connect(server.getsockname())
thread = threading.Thread(target=lambda: heard.append(outcome(client.recv, 10)))
thread.start()
time.sleep(0.1)
say("shutdown", outcome(client.shutdown, socket.SHUT_RD))
thread.join()
say(heard, "poll", polled(client))
