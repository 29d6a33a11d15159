"""readv, writev, sendmsg and recvmsg with several pieces; positions are refused."""

from _case import *

client, accepted = pair()
say(os.writev(client.fileno(), [b"one", b"", b"two", b"three"]))
first, second = bytearray(4), bytearray(100)
until(lambda: "IN" in polled(accepted))
count = os.readv(accepted.fileno(), [first, second])
say(count, bytes(first), bytes(second[: count - 4]))
say(client.sendmsg([b"four", b"five"]))
data, control, flags, address = accepted.recvmsg(100)
say(data, control, flags, address)
say(
    "pwrite",
    outcome(os.pwrite, client.fileno(), b"x", 0),
    "pread",
    outcome(os.pread, client.fileno(), 1, 0),
)
say("seek", outcome(os.lseek, client.fileno(), 0, os.SEEK_SET))
