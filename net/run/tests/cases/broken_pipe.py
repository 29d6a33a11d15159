"""Writing where nobody reads: SIGPIPE ends the process unless it is ignored or MSG_NOSIGNAL is
set.
"""

import signal

from _case import *


def killed(write):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    client, accepted = pair()
    client.shutdown(socket.SHUT_WR)
    write(client)
    return 0


say("send", child(lambda: killed(lambda sock: sock.send(b"x"))))
say("write", child(lambda: killed(lambda sock: os.write(sock.fileno(), b"x"))))
say(
    "MSG_NOSIGNAL",
    child(lambda: killed(lambda sock: say(outcome(sock.send, b"x", socket.MSG_NOSIGNAL)))),
)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
client, accepted = pair()
client.shutdown(socket.SHUT_WR)
say("ignored", outcome(client.send, b"x"), outcome(os.write, client.fileno(), b"x"))
