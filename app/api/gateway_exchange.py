"""A gateway request on its way upstream, and its response on the way back, from which the reply is read for the log."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog
from starlette.requests import Request
from starlette.types import Send

from app import tracing
from app.api.metrics import RETRIES
from app.core.gateway import sse
from app.core.gateway.bounds import (
    ERROR_BYTES_MAX,
    JSON_BYTES_MAX,
    STREAM_BYTES_MAX,
    TooLarge,
    Unpacker,
    Unreadable,
    object_or_none,
    parse_object,
    unpacked,
)
from app.core.gateway.calls import ENDPOINTS, CallConversation
from app.core.gateway.chat_reply import is_usage_only
from app.core.gateway.headers import request_fields, response_fields, secrets
from app.core.gateway.reply import NOTHING, Reply, error_of
from app.core.log.events import Json
from app.providers.traced import OPERATION
from app.providers.upstream import Upstream, UpstreamAnswer, UpstreamError
from app.services.gateway import Gateway, GatewayOutcome, PreparedCall

SEND_SECONDS: Final = 60.0
"""The time after which a client that reads nothing of a response is dropped."""
GONE: Final = "the client went away"
BROKEN: Final = "the stream broke off"
UNREAD: Final = "the reply was not read to its end: {}"


@dataclass(frozen=True, slots=True)
class GatewayTarget:
    """The target of a gateway request: a provider, its path, and the session that the URL names, if any."""

    provider: str
    path: str
    session: str | None


@dataclass(slots=True)
class GatewayExchange:
    """One request through the gateway, with the body to send upstream and its mode.

    `context`: a context replaces the conversation, and `call` is its record. `bypass`: the request belongs to a session
    but is sent unchanged, and `reason` says why. `passthrough`: it belongs to no session.
    """

    request: Request
    target: GatewayTarget
    upstream: Upstream
    body: bytes
    mode: str = "passthrough"
    reason: str | None = None
    session: str | None = None
    call: PreparedCall | None = None
    response_started: bool = False
    response_complete: bool = False
    started: float = 0.0

    @property
    def uri(self) -> str:
        """Path and query to request upstream: the request's, without the gateway's prefix."""
        query = self.request.scope["query_string"].decode("latin-1")
        return f"{self.target.path}?{query}" if query else self.target.path

    def response_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that describe how the request was handled."""
        found: dict[str, object] = {"mode": self.mode, "reason": self.reason, "session": self.session}
        if self.call is not None:
            call = self.call
            found |= {"line": call.line, "call": call.call_id, "epoch": call.epoch}
            found |= {"tokens-sent": call.tokens_sent, "tokens-wanted": call.tokens_wanted}
        return [
            (f"x-palimpsest-{name}".encode(), str(value).encode()) for name, value in found.items() if value is not None
        ]

    def outcome(self, reply: Reply = NOTHING, error: Mapping[str, Json] | None = None) -> GatewayOutcome:
        """Return the outcome of the call as of now."""
        hidden = secrets(self.request.headers.raw, self.request.scope["query_string"])
        return GatewayOutcome(reply, int((time.perf_counter() - self.started) * 1000), error, hidden)


async def forward_exchange(gateway: Gateway, passage: GatewayExchange, send: Send) -> None:
    """Forward the request and return the response; retry once if the provider says that the context was too long.

    Raises UpstreamError, possibly after the response has begun (`passage.response_started`).
    """
    while True:
        call = passage.call
        passage.started = time.perf_counter()
        try:
            async with _call_upstream(passage) as (answer, span):
                if call is None:
                    await _send(passage, answer, answer.raw(), send)
                    return
                if answer.status < 400:
                    call = passage.call = call.without_bodies()
                    passage.body = b""
                    await _send_and_log(gateway, passage, call, answer, send, span)
                    return
                pieces = answer.raw()
                beginning = await _read_beginning(pieces)
                text = unpacked(beginning, answer.headers.get("content-encoding", ""), ERROR_BYTES_MAX)
                again = await gateway.retry_smaller(call, passage.outcome(error=_error(answer.status, text)))
                if again is None:
                    await _send(passage, answer, _chain(beginning, pieces), send)
                    return
                RETRIES.inc()
                passage.call, passage.body = again, again.body
        except (UpstreamError, asyncio.CancelledError) as error:
            if call is not None and not passage.response_started:
                why = error.detail if isinstance(error, UpstreamError) else GONE
                gateway.finish(call, passage.outcome(error={"message": why}))
            raise


@asynccontextmanager
async def _call_upstream(passage: GatewayExchange) -> AsyncIterator[tuple[UpstreamAnswer, tracing.OpenSpan]]:
    """Yield the upstream response and the span of the call. Raises UpstreamError."""
    request, target = passage.request, passage.target
    endpoint = ENDPOINTS.get((target.provider, target.path))
    chat = OPERATION if endpoint is not None and not endpoint.counts and request.method == "POST" else None
    model = None if passage.call is None else passage.call.conversation.model
    up = request_fields(request.headers.raw, plain=passage.call is not None)
    with tracing.span(
        " ".join(part for part in (chat or request.method, model) if part),
        "client",
        gen_ai__operation__name=chat,
        gen_ai__provider__name=target.provider,
        gen_ai__request__model=model,
        http__request__method=request.method,
        server__address=passage.upstream.host,
        palimpsest__gateway__mode=passage.mode,
        palimpsest__session__name=passage.session,
        palimpsest__call__id=None if passage.call is None else str(passage.call.call_id),
    ) as span:
        if ours := tracing.trace_headers():  # our span is a child of the client's
            up = [field for field in up if field[0].lower() not in tracing.CONTEXT_FIELDS]
            up += [(name.encode(), value.encode()) for name, value in ours.items()]
        async with passage.upstream.request(request.method, passage.uri, up, passage.body) as answer:
            span.set(http__response__status_code=answer.status)
            if answer.status >= 400:
                span.fail(str(answer.status))
            yield answer, span


async def _send_and_log(
    gateway: Gateway,
    passage: GatewayExchange,
    call: PreparedCall,
    answer: UpstreamAnswer,
    send: Send,
    span: tracing.OpenSpan,
) -> None:
    """Stream the response to the client, and hand the reply in it to the gateway for logging, however it ended."""
    reader = _Reader(call.conversation, answer.headers)
    pieces = reader.through(answer.raw())
    error: Mapping[str, Json] | None = {"message": GONE}
    try:
        await _send(passage, answer, pieces, send, changed=reader.swallows)
        error = None
    except UpstreamError:
        error = {"message": BROKEN}
        raise
    finally:
        reply = reader.reply() if reader.bytes <= JSON_BYTES_MAX else await asyncio.to_thread(reader.reply)
        if error is None and reader.unread is not None:
            error = {"message": UNREAD.format(reader.unread)}
        _trace_usage(span, passage.target.provider, reply)
        gateway.finish(call, passage.outcome(reply, error))


def _trace_usage(span: tracing.OpenSpan, provider: str, reply: Reply) -> None:
    """Record a reply's usage in the trace. Anthropic reports cached input separately, so it is added to the input."""
    if reply.usage is None:
        return
    usage = reply.usage
    read, written = usage.get("cache_read_tokens"), usage.get("cache_write_tokens")
    apart = (read or 0) + (written or 0) if provider == "anthropic" else 0
    span.set(
        gen_ai__usage__input_tokens=(usage["input_tokens"] or 0) + apart,
        gen_ai__usage__output_tokens=usage.get("output_tokens"),
        gen_ai__usage__cache_read__input_tokens=read,
        gen_ai__usage__cache_creation__input_tokens=written,
    )


async def _send(
    passage: GatewayExchange, answer: UpstreamAnswer, pieces: AsyncIterator[bytes], send: Send, *, changed: bool = False
) -> None:
    """Send a response. Raises UpstreamError if the upstream breaks off, TimeoutError if the client reads nothing."""
    headers = [*response_fields(answer.fields, changed=changed), *passage.response_headers()]
    passage.response_started = True
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    async for piece in pieces:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    passage.response_complete = True
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Reader:
    """Extracts the reply from a response that is being streamed, within size limits.

    `bytes` counts the decompressed bytes read. `unread` says why reading stopped early; None if it did not.
    """

    def __init__(self, of: CallConversation, headers: Mapping[str, str]) -> None:
        self.unread: str | None = None
        self.streams = headers.get("content-type", "").startswith("text/event-stream")
        self.bytes = 0
        self._of = of
        self._bytes_max = STREAM_BYTES_MAX if self.streams else JSON_BYTES_MAX
        self._splitter = sse.Splitter()
        self._accumulator = of.accumulator()
        self._kept = bytearray()
        try:
            self._unpacker = Unpacker(headers.get("content-encoding", ""))
        except Unreadable as error:
            self.unread = str(error)
        self.swallows = self.streams and of.hides_usage and self.unread is None

    async def through(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces; with `swallows`, decompressed and without the usage chunk that only we requested."""
        async for piece in pieces:
            if not self.swallows:
                yield piece  # the client gets it first
                if self.unread is None:
                    await self._read(piece)
                continue
            try:
                for plain in self._unpacker.feed(piece):
                    if kept := b"".join(self._take(self._splitter.feed(plain))):
                        yield kept
                    await asyncio.sleep(0)
            except Unreadable as error:
                raise UpstreamError(f"the upstream's answer cannot be unpacked: {error}", late=False) from None
        rest = b"".join(self._take([self._splitter.end()]))
        if rest and self.swallows:
            yield rest

    async def _read(self, piece: bytes) -> None:
        """Read a piece in slices, yielding to the event loop between them."""
        try:
            for plain in self._unpacker.feed(piece):
                if self.streams:
                    self._take(self._splitter.feed(plain))
                else:
                    self._count_bytes(plain)
                    self._kept += plain if self.unread is None else b""
                if self.unread is not None:
                    break
                await asyncio.sleep(0)
        except Unreadable as error:
            self._stop(str(error))

    def _take(self, chunks: Sequence[sse.Chunk]) -> list[bytes]:
        """Read events; return the chunks to send to the client."""
        kept: list[bytes] = []
        for raw, event in chunks:
            self._count_bytes(raw)
            value = self._value(raw) if event else None
            if value is not None and self.unread is None:
                self._feed(value)
            if value is None or not (self.swallows and is_usage_only(value)):
                kept.append(raw)
        if self._splitter.oversized:
            self._stop(f"an event of it has more than {JSON_BYTES_MAX} bytes")
        return kept

    def _value(self, event: bytes) -> Mapping[str, Json] | None:
        try:
            return sse.data(event)
        except TooLarge as error:
            self._stop(f"an event of it is too large: {error}")
            return None

    def _count_bytes(self, raw: bytes) -> None:
        self.bytes += len(raw)
        if self.bytes > self._bytes_max:
            self._stop(f"it has more than {self._bytes_max} bytes")

    def _feed(self, value: Mapping[str, Json]) -> None:
        try:
            self._accumulator.feed(value)
        except Exception as error:
            structlog.get_logger().error("gateway", exc_info=error)
            self._stop("an event of it could not be read")

    def _stop(self, why: str) -> None:
        self.unread = self.unread or why
        self._kept.clear()

    def reply(self) -> Reply:
        """Return the reply: of a stream as far as it was read, of a single body only if it is complete."""
        if self.streams:
            found = self._accumulator.reply()
            return found if self.unread is None else replace(found, complete=False)
        try:
            value = parse_object(bytes(self._kept))
        except TooLarge as error:
            self._stop(str(error))
            value = None
        return NOTHING if value is None else self._of.read(value)


async def _read_beginning(pieces: AsyncIterator[bytes]) -> bytes:
    """Read pieces of a body up to at least ERROR_BYTES_MAX bytes."""
    taken = bytearray()
    async for piece in pieces:
        taken += piece
        if len(taken) >= ERROR_BYTES_MAX:
            break
    return bytes(taken)


async def _chain(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for piece in rest:
        yield piece


def _error(status: int, text: bytes) -> Mapping[str, Json]:
    """Return a provider's error in the form of a report; messages about keys are not repeated."""
    error: dict[str, Json] = {"status": status}
    if status in (401, 403):
        return error
    value = object_or_none(text) or {"message": text.decode("utf-8", "replace")}
    return {**error, **error_of(value)}
