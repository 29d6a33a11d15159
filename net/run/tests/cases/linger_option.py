"""SO_LINGER goes in and comes out; close with a linger waits for what was sent."""

import struct
import threading

from _case import *

client, accepted = pair()


def linger(sock):
    return struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))


say("default", linger(client))
for value in ((1, 5), (1, 0), (0, 9)):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", *value))
    say(value, linger(client))
say("short", outcome(client.setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, b"\1"))
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
received = []
thread = threading.Thread(target=lambda: received.append(receive(accepted, 1 << 22)))
thread.start()
client.sendall(bytes(1 << 21))
client.close()
thread.join()
say("received", len(received[0]))
