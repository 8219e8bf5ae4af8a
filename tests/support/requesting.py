"""An httpx transport for loopback; for many requests httpx's own uses more CPU than the server."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import httptools
import httpx

IDLE_SECONDS: Final = 5.0
"""Seconds after which an idle connection is not reused.

Servers keep one longer, but a server in the tests' event loop stands still during tests without a loop, and might close
a connection just as the next request uses it.
"""


class Loopback(httpx.AsyncBaseTransport):
    """A transport of HTTP/1.1 without TLS, proxies or limits; it keeps idle connections."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._idle_seconds = idle_seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the response when its headers have come."""
        timeouts = request.extensions.get("timeout", {})
        idle = self._idle.setdefault((request.url.host, request.url.port or 80), [])
        connection = await self._connection(idle, request, timeouts.get("connect"))
        try:
            await connection.send(request)
            await connection.wait_for_headers(timeouts.get("read"))
            if request.method == "HEAD":
                connection.end()
        except BaseException:
            connection.close()
            raise
        body = _Body(connection, idle, timeouts.get("read"))
        return httpx.Response(connection.status, headers=connection.headers, stream=body)

    async def _connection(
        self, idle: list["_Connection"], request: httpx.Request, seconds: float | None
    ) -> "_Connection":
        while idle:
            found = idle.pop()
            if found.is_open and time.monotonic() - found.used < self._idle_seconds:
                found.forget()
                return found
            found.close()
        try:
            async with asyncio.timeout(seconds):
                loop = asyncio.get_running_loop()
                return (await loop.create_connection(_Connection, request.url.host, request.url.port or 80))[1]
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error

    async def aclose(self) -> None:
        """Close the idle connections."""
        for connection in (connection for idle in self._idle.values() for connection in idle):
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """A connection, with the response that it is reading."""

    def __init__(self) -> None:
        self._parser, self._changed = httptools.HttpResponseParser(self), asyncio.Event()
        self._transport: asyncio.Transport
        self.is_open = True
        self.used = 0.0
        """The time at which the last response was complete."""
        self.forget()

    def forget(self) -> None:
        """Make ready for the next response."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunks: deque[bytes] = deque()
        self.status = 0
        self.is_complete = self._is_begun = False

    async def send(self, request: httpx.Request) -> None:
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%s: %s" % header for header in request.headers.raw]
        self._transport.write(b"\r\n".join([*lines, b"", b""]))
        chunked = "transfer-encoding" in request.headers
        async for chunk in request.stream:
            if chunk:
                self._transport.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if chunked else chunk)
        if chunked:
            self._transport.write(b"0\r\n\r\n")

    async def wait_for_headers(self, seconds: float | None) -> None:
        while not self._is_begun:
            if not self.is_open:
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
            await self.wait(seconds)

    async def wait(self, seconds: float | None) -> None:
        """Wait until something has come, or the connection is lost."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error

    def end(self) -> None:
        """Expect no body, whatever the headers say; the connection is closed, because the parser expects one."""
        self.is_complete = True
        self.close()

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._changed.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._is_begun = self.status >= httpx.codes.OK
        if not self._is_begun:  # 100 Continue
            self.headers = []

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = self._is_begun


class _Body(httpx.AsyncByteStream):
    """The body of a response; its connection is idle again when all of it was read."""

    def __init__(self, connection: _Connection, idle: list[_Connection], seconds: float | None) -> None:
        self._connection, self._idle, self._seconds = connection, idle, seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        while True:
            while connection.chunks:
                yield connection.chunks.popleft()
            if connection.is_complete:
                return
            if not connection.is_open:
                raise httpx.RemoteProtocolError("The connection was closed before the end of the body.")
            await connection.wait(self._seconds)

    async def aclose(self) -> None:
        if self._connection.is_complete and self._connection.is_open:
            self._connection.used = time.monotonic()
            self._idle.append(self._connection)
        else:
            self._connection.close()
