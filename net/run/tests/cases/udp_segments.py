"""UDP_SEGMENT: one call, several datagrams; by option and by control message, with and without a
peer.
"""

import struct

from _case import *

UDP_SEGMENT = 103
for host in (V4, V6):
    for connects in (False, True):
        server, client = datagrams(host), datagrams(host)
        to = server.getsockname()
        if connects:
            client.connect(to)
            to = None
        send = lambda data: outcome(client.sendto, data, to) if to else outcome(client.send, data)
        asked = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", 400))]
        say(client.sendmsg([b"a" * 1000], asked, 0, *([to] if to else [])))
        say([len(server.recv(2000)) for _ in range(3)])
        client.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 300)
        say(send(b"b" * 900), [len(server.recv(2000)) for _ in range(3)])
        say(send(b"c" * 299), len(server.recv(2000)))
        client.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
        say(send(b"d" * 900), len(server.recv(2000)))
        client.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 10)
        say("too many", send(b"e" * 2000))
        say("nothing more", outcome(server.recv, 1, socket.MSG_DONTWAIT))
