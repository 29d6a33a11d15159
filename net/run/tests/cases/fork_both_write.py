"""Parent and child write to one connection in turn; a reader sees both."""

from _case import *

client, accepted = pair()
turn, next_turn = os.pipe()


def write():
    os.read(turn, 1)
    client.sendall(b"child ")
    return 0


client.sendall(b"parent ")
pid = fork(write)
os.write(next_turn, b"x")
say(finished(pid))
client.sendall(b"parent")
client.close()
say(receive(accepted, 100))
