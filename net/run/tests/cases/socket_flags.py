"""SOCK_NONBLOCK and SOCK_CLOEXEC of socket and accept4; F_SETFL, F_SETFD and FIONBIO."""

import fcntl
import struct
import termios

from _case import *


def flags(fd):
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK), bool(
        fcntl.fcntl(fd, fcntl.F_GETFD)
    )


sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
say(flags(sock.fileno()))
client, accepted = pair()
say(flags(client.fileno()), flags(accepted.fileno()))
fcntl.fcntl(client.fileno(), fcntl.F_SETFL, os.O_NONBLOCK)
fcntl.fcntl(client.fileno(), fcntl.F_SETFD, 0)
say(flags(client.fileno()), outcome(os.read, client.fileno(), 1))
fcntl.ioctl(client.fileno(), termios.FIONBIO, struct.pack("i", 0))
say(flags(client.fileno()))
before = socket.socket()
os.set_blocking(before.fileno(), False)
os.set_inheritable(before.fileno(), True)
with listener() as server:
    say("connect", outcome(before.connect, server.getsockname()))
    polled_until(before, "OUT")
    say("kept through connect", flags(before.fileno()))
before = socket.socket()
os.set_blocking(before.fileno(), False)
os.set_inheritable(before.fileno(), True)
before.bind((V4, 0))
before.listen()
say("kept through listen", flags(before.fileno()), outcome(before.accept))
say("mode", fcntl.fcntl(client.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR)
