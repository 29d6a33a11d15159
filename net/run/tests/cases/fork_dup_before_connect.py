"""dup of a socket before bind, listen and connect: both descriptors are the same socket after."""

from _case import *

sock = socket.socket()
twin = sock.dup()
server = listener()
sock.connect(server.getsockname())
accepted, _ = server.accept()
say(twin.getpeername() == sock.getpeername())
twin.sendall(b"by the twin")
say(receive(accepted, 11))
say("bits", polled(twin), polled(sock))
sock = socket.socket()
twin = sock.dup()
sock.bind((V4, 0))
twin.listen()
client = socket.create_connection(sock.getsockname())
say(sock.accept()[1] == client.getsockname())
client = socket.create_connection(twin.getsockname())
say(twin.accept()[1] == client.getsockname())
