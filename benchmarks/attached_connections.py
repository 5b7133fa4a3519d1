"""HTTP connections of a benchmark client with many jobs. They send and receive JSON with as little overhead as asyncio allows."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


class ConnectionPool:
    """Pool of open connections to a server. A request uses any free one.

    Args:
        url: URL of the server, which is a RollMux service or a system it is compared with.
        count: Largest number of connections.
    """

    def __init__(self, url: str, count: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.Queue()
        for _ in range(count):
            self._free.put_nowait(None)

    async def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request.

        Args:
            token: Token for the request, empty means none.
            method: HTTP method.
            path: Path of the request.
            body: Value to send as JSON, None means no body.

        Returns:
            HTTP status, and the parsed answer or None if it has no body.
        """
        pair = await self._free.get()
        try:
            if pair is None:
                pair = await asyncio.open_connection(self._host, self._port)
            reader, writer = pair
            data = b"" if body is None else json.dumps(body).encode()
            head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            if not (first := await reader.readline()):
                raise ConnectionError(f"{self._host}:{self._port} has closed the connection")
            status = int(first.split()[1])
            length, chunked = 0, False
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
                chunked = chunked or (name.lower() == b"transfer-encoding" and b"chunked" in value)
            content = await (_chunks(reader) if chunked else reader.readexactly(length))
            self._free.put_nowait(pair)
            return status, json.loads(content) if content else None
        except BaseException:
            self._free.put_nowait(None)
            raise


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a body that is sent in chunks."""
    content = b""
    while length := int(await reader.readline(), 16):
        content += await reader.readexactly(length)
        await reader.readline()
    await reader.readline()
    return content
