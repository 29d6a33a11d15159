"""TCP_INFO's state, and TCP_CONGESTION and TCP_MAXSEG's plausibility, through a connection's life.
"""

from _case import *

STATES = (
    "- ESTABLISHED SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT LAST_ACK LISTEN "
    "CLOSING".split()
)


def state(sock):
    return STATES[sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0]]


sock = socket.socket()
say("new", state(sock))
server = listener()
say("listener", state(server))
client, accepted = pair()
say(state(client), state(accepted))
say(
    "length",
    len(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)),
    len(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)),
)
say("TCP_MAXSEG", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) >= 536)
say(
    "TCP_CONGESTION",
    client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").isalnum(),
)
say("wrong", outcome(client.setsockopt, socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"nonsense"))
client.shutdown(socket.SHUT_WR)
until(lambda: state(client) == "FIN_WAIT2" and state(accepted) == "CLOSE_WAIT", 3)
say(state(client), state(accepted))
accepted.close()
until(lambda: state(client) == "CLOSE", 3)
say(state(client))
