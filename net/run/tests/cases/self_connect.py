"""A socket that connects to its own port is connected to itself; two that connect to one another
meet.
"""

from _case import *

sock = socket.socket()
sock.bind((V4, 0))
say(outcome(sock.connect, sock.getsockname()))
say(sock.getpeername() == sock.getsockname())
sock.sendall(b"to itself")
say(receive(sock, 9))
sock.shutdown(socket.SHUT_WR)
say(sock.recv(1))
