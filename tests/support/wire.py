"""HTTP by hand, to send requests that no client library would."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class Answered:
    """A response as far as it arrived."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Wire:
    """A connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send bytes; ignore that the other end closed the connection."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass

    async def answer(self) -> Answered:
        """Read and return the next response."""
        line, *fields = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answered(int(line.split()[1]), headers, body)

    async def closed(self) -> bytes:
        """Return what arrives until the other end closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Wire]:
    """Open a connection and close it with the block."""
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
