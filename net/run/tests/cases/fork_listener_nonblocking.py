"""Children wait for one listener in epolls of their own, accept without blocking, and lose no
connection.
"""

import select

from _case import *

server = listener(backlog=128)
server.setblocking(False)
address = server.getsockname()


def serve():
    epoll = select.epoll()
    epoll.register(server.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)
    while True:
        epoll.poll()
        try:
            accepted, _ = server.accept()
        except BlockingIOError:
            continue
        accepted.setblocking(True)
        accepted.sendall(b"%10d" % os.getpid())
        accepted.close()


pids = [fork(serve) for _ in range(3)]
clients = []
for _ in range(60):
    clients.append(socket.create_connection(address))
say(sum(int(receive(client, 10)) in pids for client in clients))
for pid in pids:
    os.kill(pid, 15)
say([finished(pid) for pid in pids])
