"""A socket that is registered before bind, listen or connect, as event loops do."""

import select

from _case import *

NAMES = [(name, getattr(select, "EPOLL" + name)) for name in "IN PRI OUT ERR HUP RDHUP".split()]


def told(epoll, wanted, wait=5):
    last = "-"
    end = time.monotonic() + wait
    while time.monotonic() < end:
        found = epoll.poll(0.2)
        last = names(found[0][1], NAMES) if found else "-"
        if wanted in last.split("+"):
            break
    return last


for trigger in (0, select.EPOLLET):
    server = socket.socket()
    server.setblocking(False)
    epoll = select.epoll()
    epoll.register(server.fileno(), select.EPOLLIN | trigger)
    server.bind((V4, 0))
    server.listen()
    client = socket.socket()
    client.setblocking(False)
    clients = select.epoll()
    clients.register(
        client.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | trigger
    )
    say(outcome(client.connect, server.getsockname()))
    say("client", told(clients, "OUT"))
    say("listener", told(epoll, "IN"))
    accepted, _ = server.accept()
    accepted.sendall(b"x")
    say("client", told(clients, "IN"), client.recv(10))
    refused = socket.socket()
    refused.setblocking(False)
    clients.unregister(client.fileno())
    clients.register(refused.fileno(), select.EPOLLIN | select.EPOLLOUT | trigger)
    say(outcome(refused.connect, (V4, closed_port())))
    say("refused", told(clients, "ERR"))
    say(errno.errorcode[refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
