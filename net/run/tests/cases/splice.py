"""splice from a pipe into a connection and out of one into a pipe."""

import ctypes

from _case import *

libc = ctypes.CDLL(None, use_errno=True)


def splice(source, target, count):
    return libc.splice(source, None, target, None, ctypes.c_size_t(count), 0)


client, accepted = pair()
source, end = os.pipe()
os.write(end, b"through a pipe")
say(splice(source, client.fileno(), 100), receive(accepted, 14))
accepted.sendall(b"and back")
until(lambda: "IN" in polled(client))
say(splice(client.fileno(), end, 100), os.read(source, 100))
accepted.close()
polled_until(client, "RDHUP")
say("end", splice(client.fileno(), end, 100))
