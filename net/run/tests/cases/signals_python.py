"""A handler runs while accept, recv and poll wait; the calls go on, or end with its exception."""

import signal
import threading

from _case import *


class Enough(Exception):
    pass


def enough(*_):
    raise Enough


calls = []
signal.signal(signal.SIGUSR1, lambda *_: calls.append("handler"))
signal.signal(signal.SIGUSR2, enough)
client, accepted = pair()
server = listener()


def later(number, then=None):
    def act():
        time.sleep(0.1)
        os.kill(os.getpid(), number)
        if then:
            time.sleep(0.1)
            then()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


thread = later(signal.SIGUSR1, lambda: client.sendall(b"after"))
say("recv", accepted.recv(10), calls)
thread.join()
other = socket.socket()
thread = later(signal.SIGUSR1, lambda: other.connect(server.getsockname()))
say("accept", server.accept()[1] == other.getsockname(), calls)
thread.join()
for name, call in (
    ("recv", lambda: accepted.recv(10)),
    ("accept", server.accept),
    ("poll", lambda: polled(server, select.POLLIN, 5000)),
):
    thread = later(signal.SIGUSR2)
    try:
        call()
    except Enough:
        say(name, "ended by the handler")
    thread.join()
client.sendall(b"still there")
say(receive(accepted, 11))
