"""As inetd does: the executed program asks its standard input who and what it is."""

import subprocess

from _case import *

PROGRAM = """
import socket, struct
s = socket.socket(fileno=0)
o = socket.SOL_SOCKET
print(s.family.name, s.type.name, s.proto, s.getsockopt(o, socket.SO_ACCEPTCONN), flush=True)
if s.getsockopt(o, socket.SO_ACCEPTCONN):
    s = s.accept()[0]
print(s.getsockname()[0], s.getpeername()[0], s.recv(5), flush=True)
s.sendall(b"answer")
s.shutdown(socket.SHUT_WR)
"""
for host in (V4, V6):
    for whole in (False, True):
        server = listener(host)
        client = socket.create_connection(server.getsockname()[:2])
        given = server if whole else server.accept()[0]
        client.sendall(b"hello")
        sys.stdout.flush()
        ran = subprocess.run([sys.executable, "-S", "-c", PROGRAM], stdin=given)
        given.close()
        say(ran.returncode, receive(client, 100))
