"""A non-blocking writer fills the way, becomes unwritable, and writable again once it is read."""

from _case import *

client, accepted = pair()
client.setblocking(False)
sent = 0
while True:
    try:
        sent += client.send(bytes(65536))
    except BlockingIOError:
        break
say("full", polled(client, select.POLLOUT))
got = len(receive(accepted, sent))
say("all", got == sent, polled_until(client, "OUT", select.POLLOUT))
client.sendall(b"more")
say(receive(accepted, 4))
