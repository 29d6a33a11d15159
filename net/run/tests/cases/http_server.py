"""http.server with a thread a request, asked by urllib and over a kept connection."""

import http.client
import http.server
import threading
import urllib.error
import urllib.request

from _case import *

BODY = bytes(range(256)) * 1000


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path != "/body":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer((V4, 0), Handler)
port = server.server_address[1]
threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
say(urllib.request.urlopen(f"http://{V4}:{port}/body").read() == BODY)
try:
    urllib.request.urlopen(f"http://{V4}:{port}/nothing")
except urllib.error.HTTPError as error:
    say(error.code)
kept = http.client.HTTPConnection(V4, port)
for number in range(5):
    kept.request("POST", "/", b"body %d" % number)
    say(kept.getresponse().read())
kept.close()
server.shutdown()
server.server_close()
