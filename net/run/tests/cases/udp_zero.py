"""Datagrams without a byte: sent, told by poll, received with their sender, and not an end."""

from _case import *

for host in (V4, V6):
    server, client = datagrams(host), datagrams(host)
    say(client.sendto(b"", server.getsockname()), polled_until(server, "IN"))
    data, peer = server.recvfrom(10)
    say(data, peer == client.getsockname(), outcome(server.recv, 1, socket.MSG_DONTWAIT))
    client.connect(server.getsockname())
    say(client.send(b""), client.send(b"x"), os.write(client.fileno(), b"y"))
    say(server.recv(10), server.recv(10), server.recv(10))
    say("write of nothing", os.write(client.fileno(), b""))
