"""0.0.0.0 and :: as a destination mean this machine; other addresses of 127.0.0.0/8 are this
machine's.
"""

from _case import *

for bound, wanted in (
    (V4, "0.0.0.0"),
    ("0.0.0.0", V4),
    ("0.0.0.0", "127.8.9.10"),
    (V6, "::"),
    ("::", V6),
):
    with listener(bound) as server:
        client = socket.socket(family_of(bound))
        port = server.getsockname()[1]
        say(bound, wanted, outcome(client.connect, (wanted, port)))
        say(client.getpeername()[0], client.getsockname()[0])
        accepted, peer = server.accept()
        say(peer[0], accepted.getsockname()[0])
with listener("127.0.0.2") as server:
    client = socket.socket()
    say("another address", outcome(client.connect, (V4, server.getsockname()[1])))
    bound = socket.socket()
    bound.bind(("127.0.0.3", 0))
    bound.connect(server.getsockname())
    say("bound before", bound.getsockname()[0], server.accept()[1][0])
