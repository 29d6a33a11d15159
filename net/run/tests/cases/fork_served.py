"""A child serves what the parent accepted; the end comes when the last of them closes."""

from _case import *

server = listener()
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()


def serve():
    accepted.sendall(receive(accepted, 5)[::-1])
    accepted.close()
    return 3


pid = fork(serve)
client.sendall(b"hello")
say(receive(client, 5), finished(pid))
say("still open", outcome(client.recv, 1, socket.MSG_DONTWAIT))
accepted.sendall(b"parent")
say(receive(client, 6))
accepted.close()
say("end", client.recv(1))
