"""Addresses that are too short, of another family, or unreadable."""

import ctypes
import struct

from _case import *

libc = ctypes.CDLL(None, use_errno=True)


def told(value):
    return "ok" if value >= 0 else errno.errorcode[ctypes.get_errno()]


def v4(port, family=socket.AF_INET):
    return struct.pack("=H", family) + struct.pack("!H4s8x", port, socket.inet_aton(V4))


server = listener()
port = server.getsockname()[1]
for name in ("connect", "bind"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):

        def call(address, size):
            with socket.socket(socket.AF_INET, kind) as sock:
                return told(getattr(libc, name)(sock.fileno(), address, size))

        given = port if name == "connect" else 0
        say(name, kind.name, "right", call(v4(given), 16), "long", call(v4(given) + bytes(100), 28))
        say(name, kind.name, "short", call(v4(given), 8), "empty", call(v4(given), 0))
        say(
            name, kind.name, "family", call(v4(given, socket.AF_INET6), 16), call(v4(given, 77), 16)
        )
        say(
            name,
            kind.name,
            "unreadable",
            call(ctypes.c_void_p(8), 16),
            "too long",
            call(v4(given), 1000),
        )
sock = socket.socket(socket.AF_INET6)
say("AF_INET on IPv6", told(libc.connect(sock.fileno(), v4(port), 16)))
size = ctypes.c_uint(4)
name = ctypes.create_string_buffer(b"\xee" * 16, 16)
say(
    "getsockname cut",
    told(libc.getsockname(server.fileno(), name, ctypes.byref(size))),
    size.value,
    name.raw[4:],
)
say(
    "getsockname unwritable",
    told(libc.getsockname(server.fileno(), ctypes.c_void_p(8), ctypes.byref(size))),
)
