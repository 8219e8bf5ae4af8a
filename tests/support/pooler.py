"""A transaction pooler in a few words, by Postgres' wire protocol: many clients, one connection to the server.

As PgBouncer does: a client has the server's connection for one transaction, then the next one has it as it is, and a
parameter of the session in a client's greeting is refused.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from urllib.parse import unquote

from sqlalchemy.engine import make_url

KNOWN = {"user", "database", "application_name", "client_encoding"}
PROTOCOL, SSL_WANTED, CANCEL = 196_608, 80_877_103, 80_877_102


@asynccontextmanager
async def pooling(database_url: str) -> AsyncIterator[str]:
    """The pooler's URL for a database of the embedded server."""
    url = make_url(database_url)
    reader, writer = await asyncio.open_unix_connection(f"{unquote(str(url.query['host']))}/.s.PGSQL.5432")
    await _send(writer, b"", PROTOCOL.to_bytes(4) + _text("user", url.username, "database", url.database) + b"\0")
    greeting = b""
    async for kind, body in _messages(reader):
        greeting += kind + (len(body) + 4).to_bytes(4) + body
        if kind == b"Z":
            break
    turn = asyncio.Lock()

    async def serve(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            if await _welcomed(from_client, to_client):
                to_client.write(greeting)
                await _take_turns(from_client, to_client, reader, writer, turn)
        except asyncio.IncompleteReadError:
            pass
        finally:
            to_client.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"postgresql+asyncpg://{url.username}@127.0.0.1:{port}/{url.database}?ssl=disable"
    finally:
        server.close()
        writer.close()


async def _take_turns(
    from_client: asyncio.StreamReader,
    to_client: asyncio.StreamWriter,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    turn: asyncio.Lock,
) -> None:
    asked = 0
    answering: asyncio.Task[None] | None = None

    async def answer() -> None:
        """Until the server is ready for another transaction and nothing more was asked of it."""
        nonlocal asked
        try:
            async for kind, body in _messages(reader):
                await _send(to_client, kind, body)
                asked -= kind == b"Z"
                if (kind, body, asked) == (b"Z", b"I", 0):
                    return
        finally:
            turn.release()

    async for kind, body in _messages(from_client):
        if kind == b"X":
            return
        if answering is None or answering.done():
            await turn.acquire()
            answering = asyncio.create_task(answer())
        asked += kind in (b"Q", b"S")
        await _send(writer, kind, body)


async def _welcomed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read a client's greeting, and whether it asks for nothing that a pooler has not."""
    while True:
        body = await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)
        if int.from_bytes(body[:4]) != SSL_WANTED:
            break
        writer.write(b"N")
    if int.from_bytes(body[:4]) == CANCEL:
        return False
    parts = body[4:].rstrip(b"\0").decode().split("\0")
    unknown = {name for name, _ in list(pairwise(parts))[::2]} - KNOWN
    if unknown:
        detail = f"unsupported startup parameter: {', '.join(sorted(unknown))}"
        await _send(writer, b"E", b"SFATAL\0C08P01\0M" + detail.encode() + b"\0\0")
    return not unknown


def _text(*values: str | None) -> bytes:
    return b"".join((value or "").encode() + b"\0" for value in values)


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    while True:
        kind = await reader.readexactly(1)
        yield kind, await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)


async def _send(writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
    writer.write(kind + (len(body) + 4).to_bytes(4) + body)
    await writer.drain()
