"""Level-triggered epoll: told again until it is read; EPOLLRDHUP and EPOLLHUP at the end."""

import select

from _case import *

NAMES = [(name, getattr(select, "EPOLL" + name)) for name in "IN PRI OUT ERR HUP RDHUP".split()]
client, accepted = pair()
epoll = select.epoll()
epoll.register(accepted.fileno(), select.EPOLLIN | select.EPOLLRDHUP)


def told(wait=0):
    found = epoll.poll(wait)
    return names(found[0][1], NAMES) if found else "-"


say(told())
client.sendall(b"ab")
say(told(5), told())
accepted.recv(1)
say(told())
accepted.recv(1)
say(told())
epoll.modify(accepted.fileno(), select.EPOLLOUT)
say(told())
epoll.modify(accepted.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
client.shutdown(socket.SHUT_WR)
until(lambda: "RDHUP" in told())
say(told())
accepted.shutdown(socket.SHUT_WR)
say(told())
epoll.modify(accepted.fileno(), 0)
say(told())
say(outcome(epoll.register, accepted.fileno(), 0), outcome(epoll.unregister, client.fileno()))
