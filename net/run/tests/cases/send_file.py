"""sendfile of a megabyte, from an offset, and to a reader that is slow."""

import tempfile
import threading

from _case import *

COUNT = 1 << 20
content = os.urandom(COUNT)
with tempfile.TemporaryFile() as file:
    file.write(content)
    file.flush()
    client, accepted = pair()
    received = []
    thread = threading.Thread(target=lambda: received.append(receive(accepted, COUNT)))
    thread.start()
    sent = 0
    while sent < COUNT:
        sent += os.sendfile(client.fileno(), file.fileno(), sent, COUNT - sent)
    thread.join()
    say(received[0] == content)
    say(
        os.sendfile(client.fileno(), file.fileno(), COUNT - 10, 100),
        receive(accepted, 10) == content[-10:],
    )
    say("at the end", os.sendfile(client.fileno(), file.fileno(), COUNT, 100))
    accepted.close()
    server = listener()
    say("to a listener", outcome(os.sendfile, server.fileno(), file.fileno(), 0, 10))
