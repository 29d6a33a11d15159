"""Pipes, timers, events, netlink and raw sockets beside ours in one epoll."""

import select

from _case import *

say("interfaces", "lo" in dict((name, number) for number, name in socket.if_nameindex()))
client, accepted = pair()
reader, writer = os.pipe()
event = os.eventfd(0)
epoll = select.epoll()
known = {client.fileno(): "tcp", reader: "pipe", event: "event"}
for fd in known:
    epoll.register(fd, select.EPOLLIN)
say(epoll.poll(0))
os.write(writer, b"x")
os.eventfd_write(event, 1)
accepted.sendall(b"x")
until(lambda: len(epoll.poll(0)) == 3)
say(sorted(known[fd] for fd, _ in epoll.poll(0)))
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
say("netlink", outcome(netlink.bind, (0, 0)))
raw = outcome(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
say("raw", "ok" if isinstance(raw, socket.socket) or raw in ("EPERM", "EACCES") else raw)
