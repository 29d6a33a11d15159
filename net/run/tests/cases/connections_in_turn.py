"""A thousand connections one after another through one listener: nothing is used up."""

import threading

from _case import *

server = listener()


def serve():
    for _ in range(1000):
        with server.accept()[0] as accepted:
            accepted.sendall(receive(accepted, 4)[::-1])


thread = threading.Thread(target=serve)
thread.start()
right = 0
for number in range(1000):
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(b"%04d" % number)
        right += receive(client, 100) == (b"%04d" % number)[::-1]
thread.join()
say(right, len(os.listdir("/proc/self/fd")) < 10)
