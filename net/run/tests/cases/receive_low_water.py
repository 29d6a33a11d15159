"""SO_RCVLOWAT: poll tells of data once there is enough of it."""

from _case import *

client, accepted = pair()
accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 4)
client.sendall(b"ab")
time.sleep(0.05)
say("too little", polled(accepted, select.POLLIN))
client.sendall(b"cd")
say("enough", polled_until(accepted, "IN"), accepted.recv(10))
client.sendall(b"e")
client.shutdown(socket.SHUT_WR)
say("end", polled_until(accepted, "IN"), receive(accepted, 10))
