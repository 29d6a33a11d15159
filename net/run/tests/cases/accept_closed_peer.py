"""A client that came, wrote and left before accept: its bytes and its end are still there."""

from _case import *

server = listener()
client = socket.create_connection(server.getsockname())
client.sendall(b"and gone")
client.close()
say("listener", polled_until(server, "IN"))
accepted, _ = server.accept()
say(receive(accepted, 100), accepted.recv(1))
