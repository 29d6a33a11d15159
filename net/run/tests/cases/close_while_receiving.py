"""Another thread closes the descriptor, or shuts it down, while one waits in recv."""

import threading

from _case import *

client, accepted = pair()
heard = []


def wait(fd):
    try:
        heard.append(os.read(fd, 10))
    except OSError as error:
        heard.append(errno.errorcode[error.errno])


thread = threading.Thread(target=wait, args=(accepted.fileno(),))
thread.start()
time.sleep(0.1)
accepted.close()
client.sendall(b"late")
thread.join()
say("close", heard)
client, accepted = pair()
heard.clear()
thread = threading.Thread(target=wait, args=(accepted.fileno(),))
thread.start()
time.sleep(0.1)
accepted.shutdown(socket.SHUT_RD)
thread.join()
say("shutdown", heard)
