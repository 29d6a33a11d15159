"""MSG_PEEK looks and leaves; with MSG_DONTWAIT, and at the end."""

from _case import *

client, accepted = pair()
client.sendall(b"abcdef")
say(accepted.recv(3, socket.MSG_PEEK), accepted.recv(3, socket.MSG_PEEK))
say(accepted.recv(2), accepted.recv(10, socket.MSG_PEEK), accepted.recv(10))
say("nothing", outcome(accepted.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
client.close()
polled_until(accepted, "RDHUP")
say("end", accepted.recv(1, socket.MSG_PEEK), accepted.recv(1))
