"""A keep-alive HTTP/1.1 client that does no more than it must: a benchmark should time the server."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final, cast

import httptools

SENT: Final = (200, 201, 204)


class Http(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self, port: int, key: str = "") -> None:
        self._port = port
        self._headers = f"host: 127.0.0.1\r\n{f'authorization: Bearer {key}' + chr(13) + chr(10) if key else ''}"
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []

    @classmethod
    async def connect(cls, port: int, key: str = "") -> "Http":
        """To a server on loopback. Raises OSError where none listens."""
        http = cls(port, key)
        await http._connect()
        return http

    async def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The answer's body. Raises RuntimeError unless it succeeded, ConnectionError if there is none."""
        if self._transport is None or self._transport.is_closing():
            await self._connect()
        assert self._transport is not None
        kind = "content-type: application/json\r\n" if body else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}{kind}content-length: {len(body)}\r\n\r\n"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + body)
        answer = await self._answer
        status = self._parser.get_status_code()
        if status not in SENT:
            raise RuntimeError(f"{method} {path}: {status} {answer[:500]!r}")
        return answer

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: there is a connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
        self._parser, self._pieces = httptools.HttpResponseParser(self), []

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: there is none any more."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server closed the connection: {error}"))

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """httptools: a piece of the body."""
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """httptools: the end of the answer."""
        answer, self._pieces = b"".join(self._pieces), []
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)


class Spread:
    """A connection to each of several processes; each request goes to any of them, for one request at a time."""

    def __init__(self, connections: Sequence[Http], seed: int) -> None:
        self._connections = connections
        self._random = Random(seed)

    @classmethod
    async def connect(cls, ports: Sequence[int], seed: int) -> "Spread":
        """To servers on loopback. `seed` says which request goes to which. Raises OSError where none listens."""
        return cls([await Http.connect(port) for port in ports], seed)

    async def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """See Http."""
        return await self._random.choice(self._connections).request(method, path, body)

    def close(self) -> None:
        """End all connections."""
        for one in self._connections:
            one.close()
