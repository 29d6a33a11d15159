"""A listener on :: takes IPv4 too, and names its peers as mapped addresses."""

from _case import *

server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("::", 0))
server.listen()
port = server.getsockname()[1]
for host in (V4, V6):
    client = socket.socket(family_of(host))
    client.connect((host, port))
    accepted, peer = server.accept()
    say(host, peer[0], accepted.getsockname()[0], accepted.getpeername() == peer)
    say(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN))
    accepted.sendall(b"hello")
    say(receive(client, 5))
other = socket.socket()
say("0.0.0.0 beside", outcome(other.bind, ("0.0.0.0", port)))
