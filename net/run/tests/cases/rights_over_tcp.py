"""Descriptors and credentials do not travel over TCP: they are passed over, or refused."""

import array
import struct

from _case import *

client, accepted = pair()
file = os.open("/dev/null", os.O_RDONLY)
RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))
CREDENTIALS = (socket.SOL_SOCKET, 2, struct.pack("3i", os.getpid(), os.getuid(), os.getgid()))


def receive_all(sock, count):
    """Bytes, and what came with them."""
    parts, came = b"", []
    while len(parts) < count:
        part, control, flags, _ = sock.recvmsg(count, 1000)
        if not part:
            break
        parts += part
        came += [(level, kind) for level, kind, _ in control]
    return parts, came


for name, control in [
    ("rights", RIGHTS),
    ("credentials", CREDENTIALS),
    ("unknown", (socket.SOL_SOCKET, 99, b"1234")),
    ("a level of no meaning", (socket.IPPROTO_TCP, 1, b"1234")),
    ("a descriptor that is none", (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [999]))),
]:
    for one, other in (client, accepted), (accepted, client):
        sent = outcome(one.sendmsg, [b"hello"], [control])
        say(name, sent, receive_all(other, 5) if sent == 5 else "")
before = len(os.listdir("/proc/self/fd"))
client.sendmsg([b"hello"], [RIGHTS])
say(receive(accepted, 5), len(os.listdir("/proc/self/fd")) - before)
for option in 16, 83:
    say(option, outcome(accepted.setsockopt, socket.SOL_SOCKET, option, 1) is not None)
