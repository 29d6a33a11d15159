"""Duplicates of a TCP socket in an epoll before it is connected."""

from _case import *

server = listener()
sock = socket.socket()
twin = os.dup(sock.fileno())
os.dup2(twin, twin + 10)
epoll = select.epoll()
epoll.register(twin, select.EPOLLIN)
epoll.register(twin + 10, select.EPOLLIN | select.EPOLLOUT)
sock.connect(server.getsockname())
accepted, _ = server.accept()
accepted.sendall(b"hello")
polled_until(sock, "IN")
found = sorted((number - twin, bits) for number, bits in epoll.poll(5))
say(found)
say(os.get_inheritable(twin), os.get_inheritable(twin + 10))
say(os.read(twin + 10, 10), os.write(twin, b"back"), accepted.recv(10))
sock.close()
os.close(twin)
say("still open", polled(accepted))
os.close(twin + 10)
say("closed", accepted.recv(1))
