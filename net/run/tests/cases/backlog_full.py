"""A listener with a backlog of 0 takes one connection; a second one is not made until the first is
accepted.
"""

from _case import *

server = listener(backlog=0)
first, second = socket.socket(), socket.socket()
first.connect(server.getsockname())
second.setblocking(False)
say(outcome(second.connect, server.getsockname()))
time.sleep(0.1)
say("waits", polled(second))
say(server.accept()[1] == first.getsockname())
say("then", polled_until(second, "OUT"))
say(server.accept()[1] == second.getsockname())
