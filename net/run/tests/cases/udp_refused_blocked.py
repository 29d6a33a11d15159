"""A reader that waits on a connected UDP socket is woken by the refusal."""

import threading

from _case import *

client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((V4, closed_port(V4, socket.SOCK_DGRAM)))
heard = []
thread = threading.Thread(target=lambda: heard.append(outcome(client.recv, 1)))
thread.start()
time.sleep(0.05)
client.send(b"x")
thread.join()
say(heard)
