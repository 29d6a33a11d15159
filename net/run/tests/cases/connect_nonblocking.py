"""Non-blocking connect that succeeds: bits, SO_ERROR, and what a second connect says."""

from _case import *

for host in (V4, V6):
    with listener(host) as server:
        sock = socket.socket(family_of(host), socket.SOCK_STREAM)
        sock.setblocking(False)
        say("new", polled(sock))
        say(outcome(sock.connect, server.getsockname()))
        say("poll", polled_until(sock, "OUT"))
        say("SO_ERROR", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        say("second", outcome(sock.connect, server.getsockname()))
        say("third", outcome(sock.connect, server.getsockname()))
        accepted, _ = server.accept()
        say("recv", outcome(sock.recv, 1))
        accepted.sendall(b"x")
        say("poll", polled_until(sock, "IN"), outcome(sock.recv, 1))
