"""getsockname and getpeername in every state of a TCP socket."""

from _case import *


def shown(name, port=None):
    if isinstance(name, str):
        return name
    known = {0: "0"} | ({port: "the port"} if port else {})
    return (name[0], known.get(name[1], "another"), *name[2:])


for host in (V4, V6):
    sock = socket.socket(family_of(host), socket.SOCK_STREAM)
    say("new", shown(outcome(sock.getsockname)), shown(outcome(sock.getpeername)))
    sock.bind((host, 0))
    port = sock.getsockname()[1]
    say("bound", port > 0, shown(outcome(sock.getsockname), port), shown(outcome(sock.getpeername)))
    sock.listen(5)
    say("listening", shown(outcome(sock.getsockname), port), shown(outcome(sock.getpeername)))
    client = socket.socket(family_of(host), socket.SOCK_STREAM)
    client.connect((host, port))
    own = client.getsockname()[1]
    say("connected", shown(client.getsockname(), own), shown(client.getpeername(), port))
    accepted, peer = sock.accept()
    say("accepted", shown(accepted.getsockname(), port), shown(accepted.getpeername(), own))
    say("told by accept", shown(peer, own))
    client.shutdown(socket.SHUT_WR)
    say("half closed", shown(client.getsockname(), own), shown(outcome(client.getpeername), port))
    accepted.recv(1)
    say("peer half closed", shown(outcome(accepted.getpeername), own))
    accepted.close()
    client.recv(1)
    until(lambda: outcome(client.getpeername) == "ENOTCONN", 2)
    say("both closed", shown(outcome(client.getpeername), port))
    refused = socket.socket(family_of(host), socket.SOCK_STREAM)
    say("refused", outcome(refused.connect, (host, closed_port(host))))
    say("refused", shown(outcome(refused.getpeername)))
