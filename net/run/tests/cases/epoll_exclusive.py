"""EPOLLEXCLUSIVE: two epolls watch one listener; a connection reaches at least one, and is
accepted once.
"""

import select

from _case import *

server = listener()
server.setblocking(False)
epolls = [select.epoll() for _ in range(2)]
for epoll in epolls:
    epoll.register(server.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)
say("modify", outcome(epolls[0].modify, server.fileno(), select.EPOLLIN))
client = socket.create_connection(server.getsockname())
until(lambda: any(epoll.poll(0) for epoll in epolls))
accepted, _ = server.accept()
say("accepted", accepted.getpeername() == client.getsockname(), outcome(server.accept))
say("silent", [len(epoll.poll(0)) for epoll in epolls])
