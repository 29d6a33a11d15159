"""Names of UDP sockets: bound to all, to one, by the first send, by connect."""

from _case import *

sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", 0))
say(sock.getsockname()[0], sock.getsockname()[1] > 0)
sock.connect((V4, 9))
say("connected", sock.getsockname()[0], sock.getpeername())
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect((V4, 9))
say("by connect", sock.getsockname()[0], sock.getsockname()[1] > 0)
sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
sock.connect((V6, 9))
say(sock.getsockname()[0], sock.getpeername())
bound = datagrams()
say("twice", outcome(bound.bind, (V4, 0)))
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
say("in use", outcome(other.bind, bound.getsockname()))
for option in ("SO_REUSEADDR", "SO_REUSEPORT"):
    first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for each in (first, second):
        each.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
    first.bind((V4, 0))
    say(option, outcome(second.bind, first.getsockname()))
