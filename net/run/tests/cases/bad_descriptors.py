"""Socket calls on what is no socket, or nothing."""

import ctypes

from _case import *

libc = ctypes.CDLL(None, use_errno=True)
size = ctypes.byref(ctypes.c_uint(16))
name = ctypes.create_string_buffer(16)
ends = os.pipe()
CALLS = {
    "bind": lambda fd: libc.bind(fd, name, 16),
    "connect": lambda fd: libc.connect(fd, name, 16),
    "listen": lambda fd: libc.listen(fd, 1),
    "accept": lambda fd: libc.accept(fd, None, None),
    "getsockname": lambda fd: libc.getsockname(fd, name, size),
    "getpeername": lambda fd: libc.getpeername(fd, name, size),
    "getsockopt": lambda fd: libc.getsockopt(fd, 1, 3, name, size),
    "setsockopt": lambda fd: libc.setsockopt(fd, 1, 9, name, 4),
    "shutdown": lambda fd: libc.shutdown(fd, 0),
    "send": lambda fd: libc.send(fd, name, 1, 0),
    "recv": lambda fd: libc.recv(fd, name, 1, 0),
    "sendto": lambda fd: libc.sendto(fd, name, 1, 0, name, 16),
    "recvfrom": lambda fd: libc.recvfrom(fd, name, 1, 0, name, size),
}
for word, call in CALLS.items():
    told = []
    for fd in (-1, 999, ends[0]):
        told.append("ok" if call(fd) >= 0 else errno.errorcode[ctypes.get_errno()])
    say(word, *told)
