"""A minimal keep-alive HTTP/1.1 client, so that a benchmark times the server."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final, cast

import httptools

SENT: Final = (200, 201, 204)


class Http(asyncio.Protocol):
    """A connection that sends one request at a time."""

    def __init__(self, port: int, key: str = "") -> None:
        self._port = port
        self._headers = f"host: 127.0.0.1\r\n{f'authorization: Bearer {key}' + chr(13) + chr(10) if key else ''}"
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []

    @classmethod
    async def connect(cls, port: int, key: str = "") -> "Http":
        """Connect to a server on loopback. Raises OSError where none listens."""
        http = cls(port, key)
        await http._connect()
        return http

    async def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the response's body. Raises RuntimeError on an error status, ConnectionError on a lost connection."""
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
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclasses of it
        self._parser, self._pieces = httptools.HttpResponseParser(self), []

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server closed the connection: {error}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        answer, self._pieces = b"".join(self._pieces), []
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)


class Spread:
    """A connection to each of several processes; each request goes to a random one, one request at a time."""

    def __init__(self, connections: Sequence[Http], seed: int) -> None:
        self._connections = connections
        self._random = Random(seed)

    @classmethod
    async def connect(cls, ports: Sequence[int], seed: int) -> "Spread":
        """Connect to servers on loopback; `seed` fixes the choices. Raises OSError where none listens."""
        return cls([await Http.connect(port) for port in ports], seed)

    async def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request to a random server; see Http.request."""
        return await self._random.choice(self._connections).request(method, path, body)

    def close(self) -> None:
        """Close all connections."""
        for one in self._connections:
            one.close()
