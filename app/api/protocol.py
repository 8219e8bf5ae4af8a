"""HTTP on the wire: what is too much or too slow is refused before a request is made of it."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from app.api.errors import HEAD_TOO_LARGE, MALFORMED, MEDIA_TYPE, TOO_SLOW, Problem


@dataclass(frozen=True, slots=True)
class WireLimits:
    """What one request may bring before anyone has looked at it.

    `head_bytes`, `head_fields`: its line and its header fields, trailers included. `head_seconds`: from the connection,
    or the first byte of a request, to the end of its header fields. `body_seconds`: from there to the end of its body.
    `unread_bytes`: what is taken, and thrown away, of a body whose request has been answered already, so that a client
    that sends first and reads afterwards gets its answer.
    """

    head_bytes: int = 64 * 1024
    head_fields: int = 100
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    unread_bytes: int = 64 * 1024 * 1024


def bounded(limits: WireLimits) -> type[asyncio.Protocol]:
    """The protocol class of these limits, as uvicorn's `http` setting takes one."""

    class Bounded(BoundedProtocol):
        """A connection within these limits."""

        LIMITS = limits

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within limits. Whoever breaks one is answered once, if that can still be done, and cut off."""

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
        self._head_bytes = 0  # of the request's line and fields, as the parser has given them
        self._fields = 0
        self._silent = 0  # since the parser has last given anything: a name or value without an end
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait(self.LIMITS.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._wait(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the connection is being cut."""
        if self._cut or self.transport.is_closing():
            return
        if self._deadline is None:
            self._wait(self.LIMITS.head_seconds if self._in_head else self.LIMITS.body_seconds)
        self._silent += len(data)
        super().data_received(data)
        if self._head_bytes + self._silent > self.LIMITS.head_bytes and not self._cut:
            self._too_large()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        self._clear()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the request's line."""
        self._count(len(url))
        if not self._is_too_large():
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer, which nobody reads."""
        self._count(len(name) + len(value))
        self._fields += 1
        if self._in_head and not self._is_too_large():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request can be answered."""
        self._silent = 0
        if self._cut:
            return
        if self._is_too_large():
            self._too_large()
            return
        self._in_head = False
        super().on_headers_complete()
        self._wait(self.LIMITS.body_seconds)

    def on_body(self, body: bytes) -> None:
        """A piece of the request's body."""
        self._silent = 0
        if self._cut:
            return
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > self.LIMITS.unread_bytes:
                self._cut_off()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._silent = 0
        if self._cut:
            return
        self._in_head = True
        self._wait(None)
        super().on_message_complete()
        self._clear()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refuse(MALFORMED, "this is no HTTP request")

    def _count(self, size: int) -> None:
        self._silent = 0
        self._head_bytes += size

    def _is_too_large(self) -> bool:
        return self._head_bytes > self.LIMITS.head_bytes or self._fields > self.LIMITS.head_fields

    def _too_large(self) -> None:
        limits = self.LIMITS
        self._refuse(
            HEAD_TOO_LARGE,
            f"a request's line and header fields may have {limits.head_bytes} bytes and {limits.head_fields} fields",
        )

    def _wait(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late, seconds)

    def _late(self, seconds: float) -> None:
        if self.flow.read_paused:  # it is us who do not read
            self._wait(seconds)
            return
        self._deadline = None
        if self._in_head and not self._head_bytes + self._silent:  # nothing was asked
            self._cut_off()
        else:
            self._refuse(TOO_SLOW, f"the rest of the request did not come within {seconds:g} seconds")

    def _refuse(self, problem: Problem, detail: str) -> None:
        """Answer, unless an answer to this request or to one before it is on its way, and cut off."""
        self._cut = True
        answering = self.cycle is not None and not self.cycle.response_complete
        if not self.transport.is_closing() and (
            not answering or (not self._in_head and not self.cycle.response_started and not self.pipeline)
        ):
            body = json.dumps(
                {
                    "type": f"/problems/{problem.slug}",
                    "title": problem.title,
                    "status": problem.status,
                    "detail": detail,
                }
            ).encode()
            head = (
                STATUS_LINE[problem.status] + f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n".encode()
            )
            self.transport.write(head + b"connection: close\r\n\r\n" + body)
        self._cut_off()

    def _cut_off(self) -> None:
        self._cut = True
        self._wait(None)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.pipeline.clear()
        self.transport.close()
