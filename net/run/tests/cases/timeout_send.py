"""SO_SNDTIMEO ends a send that finds no room."""

import struct

from _case import *

client, accepted = pair()
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 50_000))
full = 0
for _ in range(1000):
    result = outcome(client.send, bytes(1 << 20))
    if isinstance(result, str):
        break
    full += result
say(result, full > 0)
say("all there", len(receive(accepted, full)) == full)
