"""Thirty streams at once to echo.py; fails where one comes back changed."""

import asyncio, os, sys


async def ask():
    reader, writer = await asyncio.open_connection(sys.argv[1], 8087)
    sent = os.urandom(500_000)

    async def write():
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    writing = asyncio.create_task(write())
    got = await reader.read(-1)
    await writing
    writer.close()
    return got == sent


async def main():
    assert all(await asyncio.gather(*(ask() for _ in range(30))))


asyncio.run(main())
