"""SO_RCVTIMEO ends recv and accept with EAGAIN."""

import struct

from _case import *

LIMIT = struct.pack("ll", 0, 50_000)
client, accepted = pair()
say("default", client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == bytes(16))
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
seconds, micros = struct.unpack("ll", client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
say("set", seconds, 50_000 <= micros <= 60_000)
begun = time.monotonic()
say("recv", outcome(client.recv, 1), time.monotonic() - begun >= 0.045)
begun = time.monotonic()
say("read", outcome(os.read, client.fileno(), 1), time.monotonic() - begun >= 0.045)
accepted.sendall(b"x")
say("in time", client.recv(1))
server = listener()
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LIMIT)
begun = time.monotonic()
say("accept", outcome(server.accept), time.monotonic() - begun >= 0.045)
say(
    "wrong",
    outcome(
        client.setsockopt, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1_000_001)
    ),
)
