"""F_SETOWN and O_ASYNC: SIGIO comes with the data."""

import fcntl
import signal

from _case import *

came = []
signal.signal(signal.SIGIO, lambda *_: came.append("SIGIO"))
client, accepted = pair()
fcntl.fcntl(accepted.fileno(), fcntl.F_SETOWN, os.getpid())
say(fcntl.fcntl(accepted.fileno(), fcntl.F_GETOWN) == os.getpid())
fcntl.fcntl(accepted.fileno(), fcntl.F_SETFL, os.O_ASYNC)
client.sendall(b"x")
say(until(lambda: came, 3), set(came), receive(accepted, 1))
fcntl.fcntl(accepted.fileno(), fcntl.F_SETFL, 0)
