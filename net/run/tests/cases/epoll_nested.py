"""An epoll within an epoll, and within poll and select."""

import select

from _case import *

client, accepted = pair()
inner, outer = select.epoll(), select.epoll()
inner.register(accepted.fileno(), select.EPOLLIN)
outer.register(inner.fileno(), select.EPOLLIN)
say(len(outer.poll(0)), polled(inner), select.select([inner], [], [], 0)[0] == [])
client.sendall(b"x")
say(len(outer.poll(5)), polled(inner), select.select([inner], [], [], 5)[0] == [inner])
accepted.recv(1)
say(len(outer.poll(0)))
