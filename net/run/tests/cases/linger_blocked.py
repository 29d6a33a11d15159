"""A reader that waits hears of a reset at once."""

import struct
import threading

from _case import *

client, accepted = pair()
heard = []
thread = threading.Thread(target=lambda: heard.append(outcome(accepted.recv, 1)))
thread.start()
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
time.sleep(0.05)
client.close()
thread.join()
say(heard)
