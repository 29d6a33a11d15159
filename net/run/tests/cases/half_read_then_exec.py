"""A parent reads a header and leaves the rest to an executed program: no byte is lost between
them.
"""

import subprocess

from _case import *

client, accepted = pair()
client.sendall(b"header|" + bytes(range(256)) * 400)
client.shutdown(socket.SHUT_WR)
say(receive(accepted, 7))
counted = subprocess.run(["cksum"], stdin=accepted, capture_output=True)
say(counted.stdout)
