"""A connection of each family carries bytes both ways, and its end."""

from _case import *

for host in (V4, V6):
    client, accepted = pair(host)
    client.sendall(b"hello")
    say(host, receive(accepted, 5))
    accepted.sendall(b"welcome")
    say(host, receive(client, 7))
    client.close()
    say(host, accepted.recv(1), accepted.recv(1))
    accepted.close()
