"""accept where it cannot be, or has nothing to give."""

from _case import *

sock = socket.socket()
say("new", outcome(sock.accept))
sock.bind((V4, 0))
say("bound", outcome(sock.accept))
sock.listen()
sock.setblocking(False)
say("nobody", outcome(sock.accept))
client, accepted = pair()
say("connected", outcome(client.accept))
say("listener recv", outcome(sock.recv, 1), "send", outcome(sock.send, b"x"))
say("udp", outcome(datagrams().accept), outcome(datagrams().listen))
