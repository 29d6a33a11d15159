"""A process that is killed ends its connections; one with something unread resets them."""

import signal

from _case import *

for unread in (False, True):
    server = listener()

    def hold():
        client = socket.create_connection(server.getsockname())
        client.sendall(b"here")
        signal.pause()

    pid = fork(hold)
    accepted, _ = server.accept()
    say(receive(accepted, 4))
    if unread:
        accepted.sendall(b"never read")
        time.sleep(0.05)
    os.kill(pid, 9)
    say(finished(pid), outcome(accepted.recv, 1))
