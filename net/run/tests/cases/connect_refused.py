"""A refused connection: the error, what is left of the socket, and that it can be used again."""

from _case import *

for host in (V4, V6):
    sock = socket.socket(family_of(host), socket.SOCK_STREAM)
    say(outcome(sock.connect, (host, closed_port(host))))
    say("SO_ERROR", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    say("poll", polled(sock))
    say("send", outcome(sock.send, b"x"))
    with listener(host) as server:
        say("again", outcome(sock.connect, server.getsockname()))
        accepted, _ = server.accept()
    sock.sendall(b"well")
    say(receive(accepted, 4))
