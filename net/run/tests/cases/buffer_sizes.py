"""SO_SNDBUF and SO_RCVBUF are doubled, with a least value; data still passes with small ones."""

import threading

from _case import *

for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    sock = socket.socket(socket.AF_INET, kind)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        for value in (100_000, 1, 65_536):
            sock.setsockopt(socket.SOL_SOCKET, option, value)
            say(kind.name, option, value, sock.getsockopt(socket.SOL_SOCKET, option))
client, accepted = pair()
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
thread = threading.Thread(target=client.sendall, args=(bytes(60_000),))
thread.start()
say(len(receive(accepted, 60_000)))
thread.join()
