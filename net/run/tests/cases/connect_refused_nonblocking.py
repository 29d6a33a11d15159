"""Non-blocking connect to a port where nobody listens: what poll and SO_ERROR say, once."""

from _case import *

for host in (V4, V6):
    sock = socket.socket(family_of(host), socket.SOCK_STREAM)
    sock.setblocking(False)
    say(outcome(sock.connect, (host, closed_port(host))))
    say("poll", polled_until(sock, "ERR+HUP"))
    say("SO_ERROR", errno.errorcode[sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
    say("SO_ERROR", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    say("recv", outcome(sock.recv, 1), "send", outcome(sock.send, b"x"))
