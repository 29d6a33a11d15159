"""bind and listen where they cannot be."""

from _case import *

with listener() as server:
    port = server.getsockname()[1]
    for words, make in (
        ("plain", lambda sock: None),
        ("SO_REUSEADDR", lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)),
    ):
        other = socket.socket()
        make(other)
        say(words, outcome(other.bind, (V4, port)), outcome(other.bind, ("0.0.0.0", port)))
    other = socket.socket()
    say("another address", outcome(other.bind, ("127.0.0.2", port)))
    say("twice", outcome(other.bind, ("127.0.0.2", 0)))
    say("a listener", outcome(server.bind, (V4, 0)))
say("not ours", outcome(socket.socket().bind, ("192.0.2.1", 0)))
say("not ours", outcome(socket.socket(socket.AF_INET6).bind, ("2001:db8::1", 0)))
sock = socket.socket()
say("listen unbound", outcome(sock.listen), sock.getsockname()[0], sock.getsockname()[1] > 0)
say("listen twice", outcome(sock.listen), outcome(sock.listen, 1))
client, accepted = pair()
say("connected", outcome(client.bind, (V4, 0)), outcome(client.listen))
