"""As getaddrinfo looks for source addresses: one IPv6 socket asks for one peer after another."""

import ctypes
import struct

from _case import *

libc = ctypes.CDLL(None, use_errno=True)
v4 = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 9, socket.inet_aton(V4))
for _ in range(2):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.connect((V6, 9))
    say(sock.getsockname()[0], sock.getpeername()[0])
    say(libc.connect(sock.fileno(), bytes(16), 16), sock.getsockname()[0])
    say(libc.connect(sock.fileno(), v4, 16), sock.getsockname()[0], sock.getpeername()[0])
    say(libc.connect(sock.fileno(), bytes(16), 16), sock.getsockname()[0])
    sock.connect(("::ffff:127.0.0.1", 9))
    say(sock.getsockname()[0])
say(len(socket.getaddrinfo("localhost", 22, type=socket.SOCK_STREAM)) > 0)
