"""A listener handed to a process that was not born from its maker's memory of it."""

import subprocess

from _case import *

PROGRAM = """
import socket
there = socket.socket(fileno=0)
server = socket.socket(fileno=socket.recv_fds(there, 10, 1)[1][0])
accepted, peer = server.accept()
accepted.sendall(b"served " + peer[0].encode())
"""
server = listener()
here, there = socket.socketpair()
other = subprocess.Popen([sys.executable, "-S", "-c", PROGRAM], stdin=there)
there.close()
socket.send_fds(here, [b"x"], [server.fileno()])
address = server.getsockname()
server.close()
client = socket.create_connection(address)
say(receive(client, 100), other.wait())
