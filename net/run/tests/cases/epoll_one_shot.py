"""EPOLLONESHOT: told once, then silent until it is armed again; edge and one shot together."""

import select

from _case import *

client, accepted = pair()
for extra in (0, select.EPOLLET):
    epoll = select.epoll()
    epoll.register(accepted.fileno(), select.EPOLLIN | select.EPOLLONESHOT | extra)
    client.sendall(b"a")
    say(len(epoll.poll(5)), len(epoll.poll(0)))
    client.sendall(b"b")
    say(len(epoll.poll(0.05)))
    epoll.modify(accepted.fileno(), select.EPOLLIN | select.EPOLLONESHOT | extra)
    say(len(epoll.poll(5)), receive(accepted, 2))
    epoll.modify(accepted.fileno(), select.EPOLLIN | select.EPOLLONESHOT | extra)
    say(len(epoll.poll(0.02)))
    epoll.close()
