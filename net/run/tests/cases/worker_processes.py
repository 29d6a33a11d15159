"""multiprocessing over TCP: a listener, a client in another process, objects and a descriptor of a
file.
"""

import multiprocessing.connection

from _case import *

with multiprocessing.connection.Listener((V4, 0), authkey=b"key") as server:

    def act():
        with multiprocessing.connection.Client(server.address, authkey=b"key") as client:
            client.send({"numbers": list(range(1000))})
            say("child", client.recv())
        return 0

    pid = fork(act)
    with server.accept() as accepted:
        numbers = accepted.recv()["numbers"]
        accepted.send(sum(numbers))
        say(finished(pid))
