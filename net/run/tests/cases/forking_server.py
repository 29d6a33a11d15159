"""socketserver with a process a connection, asked by several at once."""

import socketserver
import threading

from _case import *


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.strip()[::-1] + b"\n")


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True


server = Server((V4, 0), Handler)
thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
thread.start()
answers = []


def ask(number):
    with socket.create_connection(server.server_address) as client:
        with client.makefile("rwb") as file:
            for turn in range(3):
                file.write(b"%d %d\n" % (number, turn))
                file.flush()
                answers.append(file.readline())
            # Children of other connections have inherited this one: its close alone is no end.
            client.shutdown(socket.SHUT_WR)


threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
server.shutdown()
thread.join()
server.server_close()
say(sorted(answers))
