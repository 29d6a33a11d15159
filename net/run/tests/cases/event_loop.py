"""asyncio: a server and forty clients, streams and datagrams, in one loop."""

import asyncio

from _case import *


async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def ask(port, number):
    reader, writer = await asyncio.open_connection(V4, port)
    told = []
    for turn in range(5):
        writer.write(b"client %d turn %d\n" % (number, turn))
        told.append(await reader.readline() == b"CLIENT %d TURN %d\n" % (number, turn))
    writer.write_eof()
    told.append(await reader.read() == b"")
    writer.close()
    await writer.wait_closed()
    return all(told)


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        self.transport.sendto(data[::-1], peer)


class Asking(asyncio.DatagramProtocol):
    def __init__(self):
        self.answered = asyncio.get_running_loop().create_future()

    def datagram_received(self, data, peer):
        self.answered.set_result(data)


async def main():
    server = await asyncio.start_server(answer, V4, 0)
    port = server.sockets[0].getsockname()[1]
    say(sum(await asyncio.gather(*(ask(port, number) for number in range(40)))))
    try:
        await asyncio.open_connection(V4, closed_port())
    except ConnectionRefusedError:
        say("refused")
    loop = asyncio.get_running_loop()
    echo, _ = await loop.create_datagram_endpoint(Echo, (V4, 0))
    transport, protocol = await loop.create_datagram_endpoint(
        Asking, remote_addr=echo.get_extra_info("sockname")
    )
    transport.sendto(b"datagram")
    say(await protocol.answered)
    transport.close()
    echo.close()
    server.close()
    await server.wait_closed()


asyncio.run(main())
