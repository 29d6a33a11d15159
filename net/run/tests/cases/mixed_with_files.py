"""socket.makefile, buffered both ways, and lines across many small writes."""

import threading

from _case import *

client, accepted = pair()


def write():
    for part in range(300):
        client.sendall(b"line %d" % part)
        client.sendall(b"\n" if part % 3 else b" and\n")
    client.close()


thread = threading.Thread(target=write)
thread.start()
lines = list(accepted.makefile("rb"))
thread.join()
say(len(lines), lines[0], lines[-1], sum(line.endswith(b" and\n") for line in lines))
