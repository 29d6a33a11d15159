"""More descriptors are ready than a wait takes: a listener among them has its turn soon."""

import select

from _case import *

waiting = listener()
poll = select.epoll()
kept = []
for _ in range(40):
    client, accepted = pair()
    for _ in range(3):
        client.sendall(b"x")
        receive(accepted, 1)
    client.sendall(b"unread")
    kept += [client, accepted]
    until(lambda: "IN" in polled(accepted))
    poll.register(accepted, select.EPOLLIN)
poll.register(waiting, select.EPOLLIN)
late = socket.create_connection(waiting.getsockname()[:2])
until(lambda: "IN" in polled(waiting))


def waits_until_told(room):
    for wait in range(1, 200):
        told = poll.poll(0, room)
        assert 0 < len(told) <= room
        if any(descriptor == waiting.fileno() for descriptor, _ in told):
            return wait
    return "never"


# The kernel takes them in turn: 41 of them.
for room in (1, 2, 16):
    say(room, waits_until_told(room) <= 41)
