"""IPV6_V6ONLY: IPv4 is refused there, and may have the port itself."""

from _case import *

# Both families' port: held for IPv4 first, so that nobody else takes it meanwhile.
while True:
    beside = socket.socket()
    beside.bind(("0.0.0.0", 0))
    port = beside.getsockname()[1]
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    told = outcome(server.bind, ("::", port))
    if told != "EADDRINUSE":
        break
say("beside 0.0.0.0", told, outcome(server.listen))
say("set late", outcome(server.setsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0))
say(V4, outcome(socket.socket().connect, (V4, port)))
say(V6, outcome(socket.socket(socket.AF_INET6).connect, (V6, port)))
say("0.0.0.0 beside", outcome(beside.listen))
say(V4, outcome(socket.socket().connect, (V4, port)))
say(beside.accept()[1][0], server.accept()[1][0])
