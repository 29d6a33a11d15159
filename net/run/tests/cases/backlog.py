"""Connections come, and write, before anybody accepts them; they are accepted in their order."""

from _case import *

server = listener(backlog=32)
clients = []
for number in range(20):
    client = socket.create_connection(server.getsockname())
    client.sendall(b"%02d" % number)
    clients.append(client)
order = []
for client in clients:
    accepted, peer = server.accept()
    order.append((int(receive(accepted, 2)), peer == client.getsockname()))
say([number for number, _ in order], all(same for _, same in order))
