"""What UDP refuses: broadcast without the option, port 0, no address, another family."""

from _case import *

sock = datagrams()
say("port 0", outcome(sock.sendto, b"x", (V4, 0)))
say("no address", outcome(sock.send, b"x"), outcome(os.write, sock.fileno(), b"x"))
say("broadcast", outcome(sock.sendto, b"x", ("255.255.255.255", 9)))
say("not ours", outcome(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind, ("192.0.2.1", 0)))
say("MSG_OOB", outcome(sock.sendto, b"x", socket.MSG_OOB, sock.getsockname()))
sock.sendto(b"to itself", sock.getsockname())
say(sock.recvfrom(100)[1] == sock.getsockname())
