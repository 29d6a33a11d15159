"""A listener that was made here, and from which programs without a preloaded library accept, too."""

import subprocess

from _case import *

PROGRAM = """
import socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2] == "polls":
    s.setblocking(False)
    try:
        s.accept()
    except BlockingIOError:
        print("none yet", flush=True)
    s.setblocking(True)
print("ready", flush=True)
for _ in range(3):
    a, peer = s.accept()
    same = peer == a.getpeername()
    print(peer[0], same, a.getsockname() == s.getsockname(), a.recv(5), flush=True)
    a.sendall(b"child")
    a.close()
"""
environment = {name: os.environ[name] for name in os.environ if name != "LD_PRELOAD"}
for host in (V4, V6):
    for how in ("polls", "waits"):
        server = listener(host)
        os.set_inheritable(server.fileno(), True)
        sys.stdout.flush()
        words = [sys.executable, "-S", "-c", PROGRAM, str(server.fileno()), how]
        ran = subprocess.Popen(
            words, env=environment, close_fds=False, stdout=subprocess.PIPE, text=True
        )
        line = ""
        while line != "ready":
            line = ran.stdout.readline().strip()
            say(line)
        address = server.getsockname()
        for turn in range(3):
            client = socket.create_connection(address[:2])
            client.sendall(b"hello")
            say(receive(client, 5), client.getpeername() == address)
            client.close()
        say(ran.stdout.read(), ran.wait())
        # And this one, with those who came meanwhile.
        clients = [socket.create_connection(address[:2]) for _ in range(4)]
        for _ in clients:
            accepted, peer = server.accept()
            say(peer in [client.getsockname() for client in clients])
            say(accepted.getpeername() == peer, accepted.getsockname() == address)
