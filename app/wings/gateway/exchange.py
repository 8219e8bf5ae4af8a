"""A gateway request on its way upstream, and its response on the way back to the client."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx2
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from app.core.log.events import Json
from app.core.wire.bodies import JSON_BYTES_MAX, Body, object_or_none
from app.core.wire.calls import AT_PROVIDER, BETA
from app.core.wire.compacted import CompactedPlace
from app.core.wire.providers import Endpoint, Provider
from app.core.wire.replies import Reply, error_of
from app.runtime.wing import AcceptedCall, ForwardedCall
from app.tenants import Caller
from app.tracing import CONTEXT_FIELDS, TraceSpan, tracer
from app.wings.gateway.routes import Mode
from app.wings.gateway.service import Gateway, GatewayOutcome, PreparedCall, message_error
from app.wings.gateway.upstream import (
    ERROR_BYTES_MAX,
    Reader,
    UpstreamError,
    raw_pieces,
    request_fields,
    response_fields,
    secrets,
    unpack,
)

SEND_SECONDS: Final = 60.0
"""The time after which a client that reads nothing of a response is dropped."""
_HEADERS: Final = ("mode", "reason", "session", "line", "tokens-sent", "tokens-wanted", "potential-tokens")
"""Fields of a request's description that are headers of its response."""
GONE: Final = "the client went away"
BROKEN: Final = "the stream broke off"
UNREAD: Final = "the reply was not read to its end: {}"


@dataclass(slots=True)
class GatewayExchange:
    """A request through the gateway, and what is sent upstream for it.

    `path` is the path in the provider's API. `named` is the session that the URL names. `place` is the place in the log
    that the request's compaction item represents. `unrequesting` is the client's body without its request for a
    compaction. `without_beta` is a beta feature to remove from the headers. `call` is the recorded call, if any; a
    token count has none. `reason` says why no context was sent.
    `mode`: `context`, a context replaces the conversation; `observed`, the client's bytes are sent, and a context is at
    most recorded; `answered`, `own_response` is returned and nothing is sent; `bypass`, the conversation is sent as it
    is, since no context could be made or the database is unreachable; `passthrough`, the request has no conversation or
    no session, or is for the provider's endpoint for compactions.
    """

    gateway: Gateway
    who: Caller
    request: Request
    send: Send
    provider: Provider
    path: str
    named: str | None
    body: bytes = b""
    mode: Mode = "passthrough"
    reason: str | None = None
    session: str | None = None
    place: CompactedPlace | None = None
    call: PreparedCall | None = None
    own_response: Response | None = None
    unrequesting: Body | None = None
    without_beta: str | None = None
    response_started: bool = False
    response_complete: bool = False
    started: float = 0.0

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint that takes the request's conversation; None for any other request."""
        return self.provider.endpoint(self.uri) if self.request.method == "POST" else None

    @property
    def uri(self) -> str:
        """Path and query to request upstream: the request's, without the gateway's prefix."""
        query = self.request.scope["query_string"].decode("latin-1")
        return f"{self.path}?{query}" if query else self.path

    def use_body_without_compaction(self) -> None:
        """Bypass with a body that requests no compaction, unless only the provider has the history."""
        if self.reason == AT_PROVIDER:
            self.without_beta = None
        elif self.unrequesting is not None:
            self.body, self.without_beta = self.unrequesting.text.encode(), BETA

    def request_fields(self) -> list[tuple[bytes, bytes]]:
        """Return the header fields to send upstream."""
        fields = self.request.headers.raw
        return request_fields(fields, plain=self.call is not None, without_beta=self.without_beta)

    def response_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that describe how the request was handled."""
        said = self.description()
        found = {header: getattr(said, header.replace("-", "_")) for header in _HEADERS}
        found |= {"call": said.call_id, "epoch": None if self.call is None else self.call.epoch}
        return [
            (f"x-palimpsest-{name}".encode(), str(value).encode()) for name, value in found.items() if value is not None
        ]

    def description(self) -> ForwardedCall:
        """Describe the request for the list of the newest ones."""
        call, common = self.call, (self.provider.name, self.path, self.mode, self.reason, self.session)
        if call is None:
            return ForwardedCall(*common)
        observed = self.mode == "observed"
        sent, potential = (None, call.context_tokens) if observed else (call.context_tokens, None)
        return ForwardedCall(*common, call.line, call.call_id, sent, call.tokens_wanted, potential)

    def outcome(self, reply: Reply | None = None, error: Mapping[str, Json] | None = None) -> GatewayOutcome:
        """Return the outcome of the call as of now."""
        found = secrets(self.request.headers.raw, self.request.scope["query_string"])
        return GatewayOutcome(reply or Reply(), int((time.perf_counter() - self.started) * 1000), error, found)

    async def send_own_response(self, response: Response) -> None:
        """Return a response of the gateway's own."""
        response.raw_headers += self.response_headers()
        self.response_started = True
        await response(self.request.scope, self.request.receive, self.send)
        self.response_complete = True

    async def forward(self) -> None:
        """Forward the request and return the response; retry once if the provider says that the context was too long.

        Raises UpstreamError, possibly after the response has begun (`response_started`).
        """
        while True:
            call = self.call
            self.started = time.perf_counter()
            try:
                async with self._call_upstream() as (response, span):
                    if call is None:
                        await self._send(response, raw_pieces(response))
                        return
                    if response.status_code < 400:
                        self._announce(call)
                        call = self.call = call.without_bodies()
                        self.body = b""
                        await self._send_and_log(call, response, span)
                        return
                    pieces = raw_pieces(response)
                    beginning = await _read_beginning(pieces)
                    text = unpack(beginning, response.headers.get("content-encoding", ""), ERROR_BYTES_MAX)
                    refusal = self.outcome(error=_error(response.status_code, text))
                    again = await self.gateway.retry_smaller(call, refusal)
                    if again is None:
                        await self._send(response, _chain(beginning, pieces))
                        return
                    self.call, self.body = again, again.body
            except (UpstreamError, asyncio.CancelledError) as error:
                if call is not None and not self.response_started:
                    why = str(error) if isinstance(error, UpstreamError) else GONE
                    self.gateway.finish(call, self.outcome(error=message_error(why)))
                raise

    def _announce(self, call: PreparedCall) -> None:
        """Report an accepted context to the wing that keeps caches warm, if the provider has calls without a reply."""
        on_accepted = self.gateway.forwarded.on_accepted
        if on_accepted is None or not self.provider.pinged or self.mode != "context":
            return
        accepted = AcceptedCall(
            tenant_id=call.tenant_id,
            session=call.session,
            line=call.line,
            call_id=call.call_id,
            format=call.conversation.format,
            cache=call.cache,
            cached_tokens=call.cached_tokens,
            request=call.conversation.body.value,
            fields=self.request_fields(),
            body=self.body,
            send=partial(self.gateway.upstreams[self.provider.name].post, self.uri),
        )
        on_accepted(accepted, time.perf_counter() - self.started)

    @asynccontextmanager
    async def _call_upstream(self) -> AsyncIterator[tuple[httpx2.Response, TraceSpan]]:
        """Yield the upstream response and the span of the call. Raises UpstreamError."""
        request, endpoint = self.request, self.endpoint
        upstream = self.gateway.upstreams[self.provider.name]
        chat = "chat" if endpoint is not None and endpoint.replies else None
        model = None if self.call is None else self.call.conversation.model
        up = self.request_fields()
        with tracer.get().span(
            " ".join(part for part in (chat or request.method, model) if part),
            "client",
            gen_ai__operation__name=chat,
            gen_ai__provider__name=self.provider.telemetry,
            gen_ai__request__model=model,
            http__request__method=request.method,
            server__address=upstream.host,
            palimpsest__gateway__mode=self.mode,
            palimpsest__session__name=self.session,
            palimpsest__call__id=None if self.call is None else str(self.call.call_id),
        ) as span:
            if ours := tracer.get().headers():  # our span is a child of the client's
                up = [field for field in up if field[0].lower() not in CONTEXT_FIELDS]
                up += [(name.encode(), value.encode()) for name, value in ours.items()]
            async with upstream.request(request.method, self.uri, up, self.body) as response:
                span.set(http__response__status_code=response.status_code)
                if response.status_code >= 400:
                    span.fail(str(response.status_code))
                yield response, span

    async def _send_and_log(self, call: PreparedCall, response: httpx2.Response, span: TraceSpan) -> None:
        """Stream the response to the client, and hand the reply in it to the gateway for logging, however it ended."""
        reader = Reader(call.conversation, response.headers, call.item)
        pieces = reader.relay(raw_pieces(response))
        error: Mapping[str, Json] | None = message_error(GONE)
        try:
            await self._send(response, pieces, changed=reader.rewrites)
            error = None
        except UpstreamError:
            error = message_error(BROKEN)
            raise
        finally:
            reply = reader.reply() if reader.bytes <= JSON_BYTES_MAX else await asyncio.to_thread(reader.reply)
            if error is None and reader.unread is not None:
                error = message_error(UNREAD.format(reader.unread))
            _trace_usage(span, call.conversation.format, reply)
            self.gateway.finish(call, self.outcome(reply, error))

    async def _send(self, response: httpx2.Response, pieces: AsyncIterator[bytes], *, changed: bool = False) -> None:
        """Send a response. Raises UpstreamError if it breaks off, TimeoutError if the client reads nothing."""
        headers = [*response_fields(response.headers.raw, changed=changed), *self.response_headers()]
        self.response_started = True
        await self.send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        async for piece in pieces:
            async with asyncio.timeout(SEND_SECONDS):
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        self.response_complete = True
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def _trace_usage(span: TraceSpan, format: str, reply: Reply) -> None:
    """Record a reply's usage in the trace. Anthropic's format has cached input apart, so it is added to the input."""
    if reply.usage is None:
        return
    usage = reply.usage
    read, written = usage.get("cache_read_tokens"), usage.get("cache_write_tokens")
    apart = (read or 0) + (written or 0) if format == "anthropic" else 0
    span.set(
        gen_ai__usage__input_tokens=(usage["input_tokens"] or 0) + apart,
        gen_ai__usage__output_tokens=usage.get("output_tokens"),
        gen_ai__usage__cache_read__input_tokens=read,
        gen_ai__usage__cache_creation__input_tokens=written,
    )


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
    value = object_or_none(text) or message_error(text.decode("utf-8", "replace"))
    return {**error, **error_of(value)}
