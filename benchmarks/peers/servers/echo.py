"""A bare echo: what the HTTP stack under shmgpu's server costs by itself.

uvloop, httptools, a ``BufferedProtocol``, two processes on one port. A head is parsed, the body is
received where it will be answered from, and goes back: no model, no other process, no checks.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

HEAD_BYTES = 1 << 16
SMALL_BYTES = 1 << 16  # a body that comes with its head is answered in one write


class Echo(asyncio.BufferedProtocol):
    """One connection. Its buffer holds a head and what came with it; a larger body has its own."""

    def __init__(self) -> None:
        import httptools

        self._parser_type = httptools.HttpRequestParser
        self._buffer = bytearray(HEAD_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._body = bytearray()
        self._left = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, _hint: int) -> memoryview:
        if self._left:
            return memoryview(self._body)[len(self._body) - self._left :]
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._left:
            self._left -= count
            if not self._left:
                self._answer(self._body)
            return
        self._filled += count
        end = self._buffer.find(b"\r\n\r\n", 0, self._filled) + 4
        if end < 4:
            return
        self._length = 0
        self._parser_type(self).feed_data(self._view[:end])
        came, self._filled = self._view[end : self._filled], 0
        self._left = self._length - len(came)
        if not self._left:
            self._answer(came)
            return
        if len(self._body) != self._length:
            self._body = bytearray(self._length)
        self._body[: len(came)] = came

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length":
            self._length = int(value)

    def _answer(self, body: Any) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        if len(body) <= SMALL_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", port, reuse_port=True)
    await server.serve_forever()


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    for _ in range(options.processes - 1):
        if os.fork() == 0:
            break
    uvloop.run(serve(options.port))


if __name__ == "__main__":
    main()
