"""IPV6_V6ONLY: IPv4 is refused there, and may have the port itself."""

from _case import *

server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
server.bind(("::", 0))
server.listen()
port = server.getsockname()[1]
say("set late", outcome(server.setsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0))
say(V4, outcome(socket.socket().connect, (V4, port)))
say(V6, outcome(socket.socket(socket.AF_INET6).connect, (V6, port)))
beside = socket.socket()
say("0.0.0.0 beside", outcome(beside.bind, ("0.0.0.0", port)), outcome(beside.listen))
say(V4, outcome(socket.socket().connect, (V4, port)))
say(beside.accept()[1][0], server.accept()[1][0])
