"""MSG_MORE and TCP_CORK hold back at most for a while; the bytes are the same."""

from _case import *

client, accepted = pair()
client.send(b"one ", socket.MSG_MORE)
client.send(b"two")
say(receive(accepted, 7))
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
say("corked", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK))
client.send(b"three ")
client.send(b"four")
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
say(receive(accepted, 10))
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
client.send(b"left corked")
client.close()
say(receive(accepted, 100))
