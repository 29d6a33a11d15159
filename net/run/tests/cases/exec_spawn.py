"""posix_spawn with a connection as its standard output."""

from _case import *

client, accepted = pair()
pid = os.posix_spawn(
    "/bin/echo",
    ["echo", "spawned"],
    os.environ,
    file_actions=[(os.POSIX_SPAWN_DUP2, accepted.fileno(), 1)],
)
accepted.close()
say(receive(client, 100), finished(pid))
