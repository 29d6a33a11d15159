"""Edge-triggered epoll: told once for each arrival, and of room once it comes back."""

import select

from _case import *

client, accepted = pair()
epoll = select.epoll()
epoll.register(accepted.fileno(), select.EPOLLIN | select.EPOLLET)
say(len(epoll.poll(0)))
client.sendall(b"abc")
say(len(epoll.poll(5)), len(epoll.poll(0)))
accepted.recv(1)
say("partly read", len(epoll.poll(0)))
client.sendall(b"d")
say("more came", len(epoll.poll(5)), accepted.recv(10))
epoll.unregister(accepted.fileno())
client.setblocking(False)
full = 0
try:
    while True:
        full += client.send(bytes(1 << 16))
except BlockingIOError:
    pass
epoll.register(client.fileno(), select.EPOLLOUT | select.EPOLLET)
say("full", len(epoll.poll(0)))
receive(accepted, full)
say("room", len(epoll.poll(5)))
client.close()
epoll.register(accepted.fileno(), select.EPOLLIN | select.EPOLLET)
say("end", len(epoll.poll(5)), accepted.recv(1))
