"""select with all three sets, a time limit, and numbers up to its limit."""

from _case import *

client, accepted = pair()
server = listener()


def told(reading, writing, exceptional, wait=0):
    found = select.select(reading, writing, exceptional, wait)
    return [len(each) for each in found]


say(told([accepted, server], [client, server], [client]))
client.sendall(b"x")
until(lambda: told([accepted], [], []) != [0, 0, 0])
say(told([accepted, server], [accepted], []))
other = socket.create_connection(server.getsockname())
until(lambda: told([server], [], []) != [0, 0, 0])
say(told([accepted, server], [], []))
begun = time.monotonic()
say(told([other], [], [], 0.05), time.monotonic() - begun >= 0.045)
client.send(b"!", socket.MSG_OOB)
until(lambda: told([], [], [accepted]) != [0, 0, 0], 3)
say("urgent", told([], [], [accepted]))
