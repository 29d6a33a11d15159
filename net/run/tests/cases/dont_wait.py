"""MSG_DONTWAIT on a blocking socket, in both directions."""

from _case import *

client, accepted = pair()
say(outcome(client.recv, 1, socket.MSG_DONTWAIT))
sent = 0
while True:
    result = outcome(client.send, bytes(1 << 16), socket.MSG_DONTWAIT)
    if isinstance(result, str):
        break
    sent += result
say("full", result, sent > 0)
say("received", len(receive(accepted, sent)) == sent)
say("blocking still", client.getblocking())
