"""read, write, fstat, isatty, ftruncate on a connection; zero-length reads and writes."""

import stat

from _case import *

client, accepted = pair()
fd = client.fileno()
say(os.write(fd, b"hello"), os.read(accepted.fileno(), 100))
say("socket", stat.S_ISSOCK(os.fstat(fd).st_mode), os.isatty(fd))
say("link", os.readlink(f"/proc/self/fd/{fd}").startswith("socket:["))
say("truncate", outcome(os.ftruncate, fd, 0), "fsync", outcome(os.fsync, fd))
say("empty", os.write(fd, b""), client.send(b""), outcome(accepted.recv, 0))
say("nothing came", outcome(accepted.recv, 10, socket.MSG_DONTWAIT))
for sock in (socket.socket(), listener(), datagrams()):
    say("socket", stat.S_ISSOCK(os.fstat(sock.fileno()).st_mode))
    say("different", os.fstat(sock.fileno()).st_ino != os.fstat(fd).st_ino)
