"""A port whose connections wait in TIME-WAIT: refused plainly, given with SO_REUSEADDR."""

from _case import *

for reuse in (0, 1):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    server.bind((V4, 0))
    server.listen()
    address = server.getsockname()
    client = socket.create_connection(address)
    accepted, _ = server.accept()
    accepted.close()  # the server's end closes first and waits
    client.recv(1)
    client.close()
    server.close()
    again = socket.socket()
    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    say("SO_REUSEADDR", reuse, outcome(again.bind, address))
