"""Four threads wait in one epoll with one-shot registrations; every message is answered once."""

import select
import threading

from _case import *

pairs = [pair() for _ in range(16)]
by_number = {accepted.fileno(): accepted for _, accepted in pairs}
epoll = select.epoll()
for number in by_number:
    epoll.register(number, select.EPOLLIN | select.EPOLLONESHOT)
stop_reader, stop = os.pipe()
epoll.register(stop_reader, select.EPOLLIN)


def work():
    while True:
        for number, _ in epoll.poll():
            if number == stop_reader:
                return
            sock = by_number[number]
            sock.sendall(receive(sock, 8)[::-1])
            epoll.modify(number, select.EPOLLIN | select.EPOLLONESHOT)


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
right = 0
for turn in range(20):
    for client, _ in pairs:
        client.sendall(b"%08d" % turn)
    for client, _ in pairs:
        right += receive(client, 8) == (b"%08d" % turn)[::-1]
os.write(stop, b"x")
for thread in threads:
    thread.join()
say(right)
