"""Sixteen clients of a memcached, and a question over UDP; fails where an answer is wrong."""

import os, socket, sys, threading


def ask(number):
    sock = socket.create_connection((sys.argv[1], 11211))
    file = sock.makefile("rwb")
    for turn in range(200):
        value = os.urandom(1 + turn * 37 % 9000)
        file.write(b"set key%d.%d 0 0 %d\r\n%s\r\n" % (number, turn, len(value), value))
        file.flush()
        assert file.readline() == b"STORED\r\n"
        file.write(b"get key%d.%d\r\n" % (number, turn))
        file.flush()
        assert file.readline().split()[3] == b"%d" % len(value)
        assert file.read(len(value) + 2) == value + b"\r\n" and file.readline() == b"END\r\n"
        right[number] += 1


right = [0] * 16
threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert right == [200] * 16, right
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(10)
udp.connect((sys.argv[1], 11211))
udp.send(b"\x12\x34\0\0\0\1\0\0version\r\n")
assert udp.recv(1000)[8:].startswith(b"VERSION"), "udp"
