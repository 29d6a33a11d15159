"""One direction ends, the other goes on."""

from _case import *

for host in (V4, V6):
    client, accepted = pair(host)
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    say(receive(accepted, 100))
    say("accepted", polled_until(accepted, "IN+RDHUP"), "client", polled(client))
    accepted.sendall(b"answer")
    say(receive(client, 6))
    say("send", outcome(client.send, b"x", socket.MSG_NOSIGNAL))
    accepted.shutdown(socket.SHUT_WR)
    say("end", client.recv(10))
    say("client", polled_until(client, "HUP"), "accepted", polled_until(accepted, "HUP"))
