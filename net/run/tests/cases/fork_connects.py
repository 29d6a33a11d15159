"""A child makes its own connection to the parent's listener, binds its own, and the parent
connects back.
"""

from _case import *

server = listener()
tell, told = socket.socketpair()


def act():
    own = listener()
    tell.sendall(b"%d" % own.getsockname()[1])
    client = socket.create_connection(server.getsockname())
    client.sendall(b"from the child")
    client.close()
    accepted, _ = own.accept()
    say("child received", receive(accepted, 100))
    return 5


pid = fork(act)
port = int(told.recv(10))
accepted, _ = server.accept()
say("parent received", receive(accepted, 100))
with socket.create_connection((V4, port)) as client:
    client.sendall(b"from the parent")
say(finished(pid))
