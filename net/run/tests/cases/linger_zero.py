"""SO_LINGER of 0: close resets, the peer hears ECONNRESET once."""

import struct

from _case import *

for host in (V4, V6):
    client, accepted = pair(host)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    say("poll", polled_until(accepted, "ERR+HUP"))
    say(outcome(accepted.recv, 1), outcome(accepted.recv, 1))
    say("send", outcome(accepted.send, b"x", socket.MSG_NOSIGNAL))
    client, accepted = pair(host)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    polled_until(accepted, "ERR+HUP")
    say("SO_ERROR", errno.errorcode[accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
    say("then", outcome(accepted.recv, 1), outcome(accepted.send, b"x", socket.MSG_NOSIGNAL))
