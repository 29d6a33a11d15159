"""The lowest free number is taken, and a failed accept or connect takes none."""

from _case import *

first = socket.socket()
base = first.fileno()
others = [socket.socket() for _ in range(3)]
say([other.fileno() - base for other in others])
others[0].close()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
say(udp.fileno() - base)
server = listener()
number = server.fileno() - base
server.setblocking(False)
outcome(server.accept)
client = socket.socket()
client.connect(server.getsockname())
polled_until(server, "IN")
accepted, _ = server.accept()
say(number, client.fileno() - base, accepted.fileno() - base)
outcome(others[1].connect, (V4, closed_port()))
say(others[1].fileno() - base, os.open("/dev/null", os.O_RDONLY) - base)
