"""A peer that goes, and one that comes to its port: refused in between, by send, recvfrom and poll."""

import threading

from _case import *

for host in (V4, V6):
    peer, client = datagrams(host), datagrams(host)
    name = peer.getsockname()
    client.connect(name)
    client.send(b"there")
    say(peer.recv(10))
    peer.close()
    say("sent", client.send(b"nobody"))
    say("bits", polled_until(client, "ERR"), outcome(client.recvfrom, 1))
    say("recvmsg", client.send(b"nobody"))
    polled_until(client, "ERR")
    say(outcome(client.recvmsg, 1, 100), outcome(client.recvmsg, 1, 100, socket.MSG_DONTWAIT))
    say("to it", client.sendto(b"nobody", name))
    polled_until(client, "ERR")
    say(outcome(client.sendto, b"again", name))
    polled_until(client, "ERR")
    heard = []
    client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    thread = threading.Thread(target=lambda: heard.append(outcome(client.recvfrom, 1)))
    thread.start()
    time.sleep(0.05)
    client.send(b"wakes the reader")
    thread.join()
    say("waited", heard)
    peer = socket.socket(family_of(host), socket.SOCK_DGRAM)
    peer.bind(name)
    say("back", client.send(b"back"), peer.recvfrom(10)[1] == client.getsockname())
    peer.sendto(b"answer", client.getsockname())
    say(client.recvfrom(10)[0])
