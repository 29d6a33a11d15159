"""getaddrinfo and create_connection by names and numbers of this machine."""

from _case import *

for name in ("localhost", V4, V6):
    found = socket.getaddrinfo(
        name, 80, type=socket.SOCK_STREAM, family=socket.AF_INET6 if name == V6 else socket.AF_INET
    )
    say(name, sorted({address[0] for *_, address in found}))
server = listener()
client = socket.create_connection(("localhost", server.getsockname()[1]))
say(server.accept()[1][0], client.getpeername()[0])
say(outcome(socket.create_connection, ("localhost", closed_port())))
say(socket.getservbyname("http"), socket.gethostname() != "")
