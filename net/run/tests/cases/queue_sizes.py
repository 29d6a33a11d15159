"""FIONREAD and SIOCOUTQ: bytes that wait to be read, and to be acknowledged."""

import fcntl
import struct
import termios

from _case import *

SIOCOUTQ = termios.TIOCOUTQ


def count(sock, request):
    return outcome(lambda: struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0])


client, accepted = pair()
say("nothing", count(accepted, termios.FIONREAD), count(client, SIOCOUTQ))
client.sendall(bytes(1000))
until(lambda: count(accepted, termios.FIONREAD) == 1000)
say("waiting", count(accepted, termios.FIONREAD))
until(lambda: count(client, SIOCOUTQ) == 0)
say("acknowledged", count(client, SIOCOUTQ))
accepted.recv(400)
say("left", count(accepted, termios.FIONREAD))
client.close()
polled_until(accepted, "RDHUP")
say("left", count(accepted, termios.FIONREAD))
accepted.recv(600)
say("end", count(accepted, termios.FIONREAD))
say("listener", count(listener(), termios.FIONREAD))
udp, sender = datagrams(), datagrams()
say("udp", count(udp, termios.FIONREAD))
sender.sendto(bytes(100), udp.getsockname())
sender.sendto(bytes(50), udp.getsockname())
until(lambda: count(udp, termios.FIONREAD) > 0)
say("udp, the first", count(udp, termios.FIONREAD))
