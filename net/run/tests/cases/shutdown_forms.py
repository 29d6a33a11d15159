"""Each form of shutdown, on each end and where it cannot be."""

from _case import *

client, accepted = pair()
client.shutdown(socket.SHUT_RD)
say("SHUT_RD", client.recv(10), polled_until(client, "IN+RDHUP"))
client.sendall(b"still")
say(receive(accepted, 5))
client, accepted = pair()
accepted.sendall(b"before")
until(lambda: "IN" in polled(client))
client.shutdown(socket.SHUT_RD)
say("what came before", client.recv(10), client.recv(10))
client, accepted = pair()
client.shutdown(socket.SHUT_RDWR)
say("SHUT_RDWR", client.recv(10), outcome(client.send, b"x", socket.MSG_NOSIGNAL))
say("peer", accepted.recv(10))
say("again", outcome(client.shutdown, socket.SHUT_RDWR), outcome(client.shutdown, socket.SHUT_WR))
sock = socket.socket()
say("new", outcome(sock.shutdown, socket.SHUT_RDWR), outcome(sock.shutdown, 7))
say("udp", outcome(datagrams().shutdown, socket.SHUT_RDWR))
