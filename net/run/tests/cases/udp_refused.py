"""Nobody has the port: a connected UDP socket hears it once, an unconnected one never."""

from _case import *

for host in (V4, V6):
    client = socket.socket(family_of(host), socket.SOCK_DGRAM)
    client.connect((host, closed_port(host, socket.SOCK_DGRAM)))
    say(client.send(b"x"), polled_until(client, "ERR"))
    say("recv", outcome(client.recv, 1), outcome(client.recv, 1, socket.MSG_DONTWAIT))
    client.send(b"x")
    polled_until(client, "ERR")
    say("send", outcome(client.send, b"y"), outcome(client.send, b"y"))
    polled_until(client, "ERR")
    say(
        "SO_ERROR",
        errno.errorcode[client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)],
        client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR),
    )
    free = socket.socket(family_of(host), socket.SOCK_DGRAM)
    say("unconnected", free.sendto(b"x", (host, closed_port(host, socket.SOCK_DGRAM))))
    time.sleep(0.05)
    say(polled(free), outcome(free.recv, 1, socket.MSG_DONTWAIT))
