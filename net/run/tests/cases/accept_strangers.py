"""Whoever else finds a listener, by whatever name, is not accepted in the place of who connects."""

from _case import *


def listening_ends():
    """Abstract names of listening ends: none on the kernel."""
    with open("/proc/net/unix", "rb") as table:
        words = (line.split() for line in table)
        names = {row[7] for row in words if len(row) > 7}
    return [b"\0" + name[1:] for name in names if name.startswith(b"@sidecoreL")]


def visit(end, letter):
    """Connects to a listening end under a name like those of the supervisor's sessions, or none."""
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if letter:
        visitor.bind(end[:9] + letter + end[10:-8] + os.urandom(4).hex().encode())
    outcome(visitor.connect, end)
    return visitor


for host in (V4, V6):
    for is_blocking in (True, False):
        with listener(host) as server:
            server.setblocking(is_blocking)
            ends = listening_ends()
            visitors = [visit(end, letter) for end in ends for letter in (b"", b"S", b"P", b"T")]
            client = socket.create_connection(server.getsockname()[:2])
            if not is_blocking:
                # Those who are passed over may have been all that there was for a moment.
                until(lambda: polled(server, select.POLLIN) == "IN")
            found = []

            def accepts():
                try:
                    found.append(server.accept())
                except BlockingIOError:
                    pass
                return found

            until(accepts)
            accepted, peer = found[0]
            say(peer[:2] == client.getsockname()[:2], accepted.getsockname()[0] == host)
            client.sendall(b"it is me")
            say(receive(accepted, 8), accepted.getpeername()[:2] == client.getsockname()[:2])
            for visitor in visitors:
                visitor.close()
