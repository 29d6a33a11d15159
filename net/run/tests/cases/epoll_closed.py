"""A closed descriptor leaves its epoll; one with a duplicate stays."""

import select

from _case import *

client, accepted = pair()
epoll = select.epoll()
epoll.register(accepted.fileno(), select.EPOLLIN)
twin = accepted.dup()
client.sendall(b"x")
accepted.close()
say("duplicate", len(epoll.poll(5)))
twin.close()
say("closed", len(epoll.poll(0.05)))
client, accepted = pair()
epoll.register(accepted.fileno(), select.EPOLLIN)
client.close()
say("peer closed", len(epoll.poll(5)), accepted.recv(1), len(epoll.poll(0)))
