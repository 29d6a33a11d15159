"""AF_UNIX sockets stay the kernel's, whatever they carry."""

import tempfile

from _case import *

with tempfile.TemporaryDirectory() as folder:
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.join(folder, "s"))
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    say(outcome(client.connect, server.getsockname()))
    accepted, name = server.accept()
    accepted.sendall(b"hello")
    say(client.recv(10), repr(name), accepted.getpeername() == "")
    say(
        client.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN),
        accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4]
        == os.getpid().to_bytes(4, sys.byteorder),
    )
abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
abstract.bind("\0sidecore case %d" % os.getpid())
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.sendto(b"datagram", abstract.getsockname())
say(abstract.recvfrom(100))
one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.send(b"packet")
say(two.recv(3), outcome(two.recv, 1, socket.MSG_DONTWAIT))
