"""Minimal HTTP peers of a soak: a reader of streams, and a receiver of webhooks."""

import asyncio
import re
from collections.abc import Callable
from typing import Final, cast

import httptools

_ID: Final = re.compile(rb"^id: (\d+)-", re.MULTILINE)
_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"


class Listener(asyncio.Protocol):
    """A reader of one session's events. `seq` is the last one's; `gaps` counts the seqs that did not follow it."""

    def __init__(self, path: str, seq: int) -> None:
        self._path = path
        self._rest = b""
        self.seq, self.read, self.gaps = seq, 0, 0
        self.ended = asyncio.Event()
        self.status: int | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def listen(cls, port: int, session: str, after: int) -> "Listener":
        """Connect to a server on loopback."""
        path = f"/v1/sessions/{session}/stream?types=appended&after={after}"
        _, made = await asyncio.get_running_loop().create_connection(lambda: cls(path, after), "127.0.0.1", port)
        return made

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(f"GET {self._path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        for found in _ID.finditer(whole):
            seq = int(found[1])
            self.gaps += seq != self.seq + 1
            self.seq, self.read = seq, self.read + 1


class Receiver:
    """A receiver that accepts every webhook; `received` counts them."""

    def __init__(self) -> None:
        self.received = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        make = asyncio.get_running_loop().create_server(lambda: _Receiving(self._on_webhook), "127.0.0.1", 0)
        self._server = await make
        self.port = int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def _on_webhook(self) -> None:
        self.received += 1


class _Receiving(asyncio.Protocol):
    """A connection from a sender of webhooks."""

    def __init__(self, on_webhook: Callable[[], None]) -> None:
        self._on_webhook = on_webhook
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._on_webhook()
        if self._transport is not None:
            self._transport.write(_NO_CONTENT)
