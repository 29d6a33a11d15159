"""A socket made before fork is connected by the child; the parent uses it after."""

from _case import *

server = listener()
sock = socket.socket()
say(child(lambda: sock.connect(server.getsockname())))
say(sock.getpeername() == server.getsockname())
accepted, peer = server.accept()
sock.sendall(b"parent")
say(receive(accepted, 6), peer == sock.getsockname())
server = socket.socket()


def listening():
    server.bind((V4, 0))
    server.listen()


say(child(listening))
client = socket.create_connection(server.getsockname())
say(server.accept()[1] == client.getsockname())
