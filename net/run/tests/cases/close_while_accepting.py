"""Another thread shuts a listener down while one waits in accept, and closes it while one polls."""

import threading

from _case import *

server = listener()
heard = []
thread = threading.Thread(target=lambda: heard.append(outcome(server.accept)))
thread.start()
time.sleep(0.1)
server.shutdown(socket.SHUT_RDWR)
thread.join()
say(heard)
server = listener()
heard.clear()
thread = threading.Thread(target=lambda: heard.append(polled(server, select.POLLIN, 5000)))
thread.start()
time.sleep(0.1)
server.shutdown(socket.SHUT_RDWR)
thread.join()
say(heard)
