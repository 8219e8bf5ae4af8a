"""Limits on the HTTP connection: requests that are too large or too slow are refused before the application runs."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from app.http.errors import HEAD_TOO_LARGE, MALFORMED, MEDIA_TYPE, TOO_SLOW, Problem


@dataclass(frozen=True, slots=True)
class WireLimits:
    """The limits on a request's size and on the time it takes to arrive.

    `head_bytes`, `head_fields`: the request line and header fields, trailers included. `head_seconds`: from the
    connection, or the first byte of a request, to the end of its header fields. `body_seconds`: from there to the end
    of its body. `unread_bytes`: the part of a body that is received and discarded after the response was sent, so that
    a client that sends everything before it reads still gets the response.
    """

    head_bytes: int = 64 * 1024
    head_fields: int = 100
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    unread_bytes: int = 64 * 1024 * 1024


def protocol_class(limits: WireLimits) -> type[asyncio.Protocol]:
    """Return a protocol class with these limits, for uvicorn's `http` setting."""

    class Bounded(LimitedProtocol):
        """A connection with these limits."""

        LIMITS = limits

    return Bounded


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. A client over a limit gets a problem, if still possible, and is disconnected."""

    LIMITS: ClassVar[WireLimits] = WireLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = True
        self._cut = False
        self._clear()

    def _clear(self) -> None:
        self._head_bytes = 0  # of the request line and fields that the parser has reported
        self._fields = 0
        self._unparsed = 0  # bytes received since the parser last reported anything, such as of an endless field
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._set_timer(self.LIMITS.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._set_timer(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless the connection is being closed."""
        if self._cut or self.transport.is_closing():
            return
        if self._deadline is None:
            self._set_timer(self.LIMITS.head_seconds if self._in_head else self.LIMITS.body_seconds)
        self._unparsed += len(data)
        super().data_received(data)
        if self._head_bytes + self._unparsed > self.LIMITS.head_bytes and not self._cut:
            self._too_large()

    def on_message_begin(self) -> None:
        """Reset the counts for a new request."""
        self._in_head = True
        self._clear()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a piece of the request line."""
        self._count(len(url))
        if not self._is_too_large():
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header field or a trailer; trailers are discarded."""
        self._count(len(name) + len(value))
        self._fields += 1
        if self._in_head and not self._is_too_large():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application and the timer for the body, or refuse the request."""
        self._unparsed = 0
        if self._cut:
            return
        if self._is_too_large():
            self._too_large()
            return
        self._in_head = False
        super().on_headers_complete()
        self._set_timer(self.LIMITS.body_seconds)

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on, or discard it if the response is complete."""
        self._unparsed = 0
        if self._cut:
            return
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > self.LIMITS.unread_bytes:
                self._disconnect()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer at the end of a request."""
        self._unparsed = 0
        if self._cut:
            return
        self._in_head = True
        self._set_timer(None)
        super().on_message_complete()
        self._clear()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP."""
        self._refuse(MALFORMED, "this is not a valid HTTP request")

    def _count(self, size: int) -> None:
        self._unparsed = 0
        self._head_bytes += size

    def _is_too_large(self) -> bool:
        return self._head_bytes > self.LIMITS.head_bytes or self._fields > self.LIMITS.head_fields

    def _too_large(self) -> None:
        limits = self.LIMITS
        self._refuse(
            HEAD_TOO_LARGE,
            f"the request line and header fields may have {limits.head_bytes} bytes and {limits.head_fields} fields",
        )

    def _set_timer(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._on_timeout, seconds)

    def _on_timeout(self, seconds: float) -> None:
        if self.flow.read_paused:  # the delay is on our side
            self._set_timer(seconds)
            return
        self._deadline = None
        if self._in_head and not self._head_bytes + self._unparsed:  # no request has begun
            self._disconnect()
        else:
            self._refuse(TOO_SLOW, f"the rest of the request did not arrive within {seconds:g} seconds")

    def _refuse(self, problem: Problem, detail: str) -> None:
        """Send a problem, unless this request has its response or an earlier one has none; close the connection."""
        self._cut = True
        cycle = self.cycle
        if self._in_head:
            may_respond = cycle is None or cycle.response_complete
        else:
            may_respond = not cycle.response_started and not self.pipeline
        if may_respond and not self.transport.is_closing():
            body = json.dumps(problem.body(detail)).encode()
            fields = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[problem.status] + fields.encode() + body)
        self._disconnect()

    def _disconnect(self) -> None:
        self._cut = True
        self._set_timer(None)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.pipeline.clear()
        self.transport.close()
