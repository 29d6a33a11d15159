"""Descriptors that close on exec end their connection there; inheritable ones stay."""

import subprocess

from _case import *

for inheritable in (False, True):
    client, accepted = pair()
    accepted.set_inheritable(inheritable)
    number = accepted.fileno()
    sleeper = subprocess.Popen(
        ["sh", "-c", f"read line; echo inherited >&{number}"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        close_fds=False,
    )
    accepted.close()
    if not inheritable:
        say("ended", client.recv(100))
    sleeper.stdin.write(b"\n")
    sleeper.stdin.close()
    sleeper.wait()
    say(receive(client, 100))
