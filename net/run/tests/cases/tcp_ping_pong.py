"""Two thousand requests of 64 bytes and their answers, with a thread at each end."""

import threading

from _case import *

client, accepted = pair()


def answer():
    while True:
        asked = receive(accepted, 64)
        if not asked:
            break
        accepted.sendall(asked[::-1])


thread = threading.Thread(target=answer)
thread.start()
right = 0
for number in range(2000):
    request = b"%064d" % number
    client.sendall(request)
    right += receive(client, 64) == request[::-1]
client.shutdown(socket.SHUT_WR)
thread.join()
say(right)
