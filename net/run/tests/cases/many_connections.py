"""10,000 descriptors: 5,000 connections at once, each carries a byte both ways, all end."""

import resource

from _case import *

COUNT = 5000
needed = 2 * COUNT + 100
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if hard != resource.RLIM_INFINITY and hard < needed:
    sys.exit(f"this case needs {needed} descriptors, the limit is {hard}: raise it with ulimit -n")
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
server = listener(backlog=128)
ends = []
for _ in range(COUNT):
    client = socket.socket()
    client.connect(server.getsockname())
    ends.append((client, server.accept()[0]))
say("connections", len(ends), ends[-1][1].fileno() > 2 * COUNT)
right = 0
for number, (client, accepted) in enumerate(ends):
    client.send(b"%c" % (number % 256))
for number, (client, accepted) in enumerate(ends):
    right += accepted.recv(1) == b"%c" % (number % 256)
    accepted.send(b"!")
say(right, sum(client.recv(1) == b"!" for client, _ in ends))
poll = select.epoll()
for client, accepted in ends:
    poll.register(accepted.fileno(), select.EPOLLIN)
    client.close()
told = set()
until(lambda: told.update(number for number, _ in poll.poll(0, 2 * COUNT)) or len(told) == COUNT)
say("ended", len(told))
