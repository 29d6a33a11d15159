"""Kinds and protocols of sockets that there are, or not."""

from _case import *

for family in (socket.AF_INET, socket.AF_INET6):
    for kind, protocol in (
        (1, 0),
        (1, 6),
        (1, 17),
        (2, 0),
        (2, 17),
        (2, 6),
        (4, 0),
        (5, 0),
        (77, 0),
        (1, 999),
    ):
        told = outcome(socket.socket, family, kind, protocol)
        say(
            family.name,
            kind,
            protocol,
            told if isinstance(told, str) else (int(told.type), told.proto),
        )
say(outcome(socket.socket, 222, 1, 0))
