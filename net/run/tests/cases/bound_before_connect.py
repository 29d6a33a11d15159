"""A client that binds its port first; the four numbers in use twice; the same port to two servers.
"""

from _case import *

servers = [listener() for _ in range(2)]
port = closed_port()


def bound():
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((V4, port))
    return made


clients = [bound() for _ in range(3)]
say(outcome(clients[0].connect, servers[0].getsockname()))
say(servers[0].accept()[1][1] == port, clients[0].getsockname()[1] == port)
say("another server", outcome(clients[1].connect, servers[1].getsockname()))
say("the same again", outcome(clients[2].connect, servers[0].getsockname()))
