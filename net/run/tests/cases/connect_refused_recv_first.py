"""After a refused non-blocking connect the error is told once, by recv or send, not by SO_ERROR
alone.
"""

from _case import *

for first in ("recv", "send"):
    sock = socket.socket()
    sock.setblocking(False)
    say(outcome(sock.connect, (V4, closed_port())))
    polled_until(sock, "ERR")
    say(first, outcome(sock.recv, 1) if first == "recv" else outcome(sock.send, b"x"))
    say("SO_ERROR", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
