"""An epoll made before fork works in both; a child's registrations are the parent's too."""

import select

from _case import *

client, accepted = pair()
other, end = pair()
epoll = select.epoll()
epoll.register(accepted.fileno(), select.EPOLLIN)
client.sendall(b"x")


def look():
    say("child", len(epoll.poll(5)))
    epoll.register(end.fileno(), select.EPOLLIN)
    return 0


say(child(look))
other.sendall(b"y")
until(lambda: len(epoll.poll(0)) == 2)
say("parent", len(epoll.poll(0)), receive(accepted, 1), receive(end, 1), len(epoll.poll(0)))
