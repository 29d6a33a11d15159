"""MSG_WAITALL waits for the whole, or the end."""

import threading

from _case import *

client, accepted = pair()


def write():
    for part in (b"abc", b"def", b"ghi"):
        client.sendall(part)
        time.sleep(0.02)
    client.shutdown(socket.SHUT_WR)


thread = threading.Thread(target=write)
thread.start()
say(accepted.recv(6, socket.MSG_WAITALL))
say(accepted.recv(100, socket.MSG_WAITALL))
say(accepted.recv(100, socket.MSG_WAITALL))
thread.join()
