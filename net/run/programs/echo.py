"""A server that sends back what comes, by asyncio."""

import asyncio, sys


async def answer(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(answer, sys.argv[1], 8087)
    await server.serve_forever()


asyncio.run(main())
