"""A connection as an executed program's standard input and output."""

import subprocess

from _case import *

client, accepted = pair()
cat = subprocess.Popen(["cat"], stdin=accepted, stdout=accepted)
accepted.close()
client.sendall(b"through cat")
client.shutdown(socket.SHUT_WR)
say(receive(client, 100), cat.wait())
client, accepted = pair()
shell = subprocess.Popen(
    ["sh", "-c", "read line; echo got $line; exit 4"], stdin=accepted, stdout=accepted
)
accepted.close()
client.sendall(b"a line\n")
say(receive(client, 100) if shell.wait() == 4 else "?")
