"""A writer that waits for room: the peer's reset and this end's shutdown wake it."""

import threading

from _case import *

for how in ("reset", "shutdown"):
    client, accepted = pair()
    heard = []

    def write():
        try:
            while True:
                client.send(bytes(1 << 20))
        except OSError as error:
            heard.append(errno.errorcode[error.errno])

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(0.15)
    if how == "reset":
        accepted.close()  # much is unread
    else:
        client.shutdown(socket.SHUT_WR)
    thread.join()
    say(how, heard[0] in ("ECONNRESET", "EPIPE") if how == "reset" else heard)
