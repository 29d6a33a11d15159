"""A socket that is used again: connect refused, then listen; listened, closed, bound again; many
times.
"""

from _case import *

sock = socket.socket()
outcome(sock.connect, (V4, closed_port()))
say(
    "listen after refused",
    outcome(sock.listen),
    outcome(socket.socket().connect, (V4, sock.getsockname()[1])),
)
port = closed_port()
right = 0
for turn in range(50):
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((V4, port))
        server.listen()
        with socket.create_connection((V4, port)) as client:
            accepted, _ = server.accept()
            client.sendall(b"%d" % turn)
            right += accepted.recv(10) == b"%d" % turn
            accepted.close()
say(right)
