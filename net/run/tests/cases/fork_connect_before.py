"""A socket made before fork is connected by the child, which lives on; the parent asks for its names,
and uses it.
"""

from _case import *

server = listener()
sock = socket.socket()
ours, theirs = os.pipe(), os.pipe()


def connecting():
    sock.connect(server.getsockname())
    os.write(ours[1], b"x")
    os.read(theirs[0], 1)
    sock.sendall(b"child")
    os.read(theirs[0], 1)


pid = fork(connecting)
os.read(ours[0], 1)
say(sock.getpeername() == server.getsockname())
accepted, peer = server.accept()
say(peer == sock.getsockname())
sock.sendall(b"parent")
say(receive(accepted, 6))
os.write(theirs[1], b"x")
say(receive(accepted, 5))
os.write(theirs[1], b"x")
say(finished(pid))
accepted.sendall(b"answer")
say(receive(sock, 6))
sock.close()
say(accepted.recv(1))
