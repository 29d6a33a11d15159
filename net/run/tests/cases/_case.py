"""What the cases share: connections, names of errors and of poll's bits, waiting for a condition.

Why here: a case is compared line by line between the kernel's sockets and ours, so it prints
names and results, never times, ports, descriptors' numbers or process ids.
"""

import errno
import os
import random
import select
import socket
import sys
import time

V4 = os.environ.get("SIDECORE_CASES_V4", "127.0.0.1")
V6 = os.environ.get("SIDECORE_CASES_V6", "::1")


def say(*words):
    """Prints a line at once: a child that is killed has said what it had to say."""
    print(*words, flush=True)


def outcome(call, *arguments):
    """What the call returns, or its error's name."""
    try:
        return call(*arguments)
    except socket.timeout as error:
        if error.errno is None:
            return "timed out"
        return errno.errorcode[error.errno]
    except OSError as error:
        return errno.errorcode.get(error.errno, f"{type(error).__name__}")


def done(call, *arguments):
    """`ok`, or the call's error's name: for results that differ from run to run."""
    result = outcome(call, *arguments)
    return result if isinstance(result, str) and result.isupper() else "ok"


def family_of(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listener(host=V4, backlog=64, port=0):
    """A listener on a port that the system chose."""
    made = socket.socket(family_of(host), socket.SOCK_STREAM)
    made.bind((host, port))
    made.listen(backlog)
    return made


def pair(host=V4):
    """Both ends of a connection: who connected, who accepted."""
    with listener(host) as server:
        client = socket.socket(family_of(host), socket.SOCK_STREAM)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
    return client, accepted


def datagrams(host=V4, kind=socket.SOCK_DGRAM):
    """A UDP socket on a port that the system chose."""
    made = socket.socket(family_of(host), kind)
    made.bind((host, 0))
    return made


def closed_port(host=V4, kind=socket.SOCK_STREAM):
    """A port where nobody listens, outside of those that a socket gets by itself: a client that got
    this one would reach itself."""
    while True:
        with socket.socket(family_of(host), kind) as made:
            port = random.randrange(20_000, 32_000)
            if not isinstance(outcome(made.bind, (host, port)), str):
                return port


def until(condition, seconds=10):
    """Waits until the condition holds; False if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def receive(sock, count):
    """Reads that many bytes, or until the end."""
    parts = []
    while count > 0:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


POLL_BITS = [
    (name, getattr(select, "POLL" + name)) for name in "IN PRI OUT ERR HUP RDHUP NVAL".split()
]
POLL_ALL = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP


def names(bits, offered=POLL_BITS):
    """Poll's bits in words."""
    return "+".join(name for name, bit in offered if bits & bit) or "-"


def polled(sock, events=POLL_ALL, wait_ms=0):
    """What poll says of a socket."""
    poll = select.poll()
    poll.register(sock, events)
    found = poll.poll(wait_ms)
    return names(found[0][1]) if found else "-"


def polled_until(sock, wanted, events=POLL_ALL):
    """What poll says of a socket, once it has said all that is wanted; else what it says after 5 s."""
    wanted = set(wanted.split("+"))
    until(lambda: wanted <= set(polled(sock, events).split("+")), 5)
    return polled(sock, events)


def child(run):
    """Runs it in a child; its exit status, or minus the signal that ended it."""
    return finished(fork(run))


def fork(run):
    """Runs it in a child, whose process id is returned."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        status = run() or 0
    except BaseException as error:  # a child must not go on with the parent's case
        say("child:", type(error).__name__, error)
    finally:
        os._exit(status)


def finished(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
