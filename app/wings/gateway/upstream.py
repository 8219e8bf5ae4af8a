"""Clients of the providers: requests are sent as given, and response bodies passed on as raw bytes.

Of a call's headers, some name its session, some pass in either direction, and some are credentials. The reply in a
response is read as it passes, within limits of size and without delaying other tasks.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from urllib.parse import unquote, unquote_plus, urlsplit

import httpx2
import structlog

from app.core.log.events import SESSION_ID_PATTERN, Json
from app.core.wire.bodies import JSON_BYTES_MAX, BadFrame, Chunk, FrameSplitter, Splitter, TooLarge, parse_object
from app.core.wire.calls import CallConversation
from app.core.wire.compacted import INSERTIONS
from app.core.wire.replies import Reply, is_usage_only, objects
from app.http.auth import session_of_client
from app.providers import Unpacker, Unreadable, credentials, may_be_secret

Fields = Sequence[tuple[bytes, bytes]]

NAME_CHARS_MAX: Final = 110
"""Maximum length of a name that is made here, which leaves room for the ids of lines."""
USER_CHARS_MAX: Final = 4_096
"""A longer `user_id` is not searched for the session that Claude Code writes into it."""
_NAME: Final = re.compile(SESSION_ID_PATTERN)
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._:@-]")
_SESSION_OF_USER: Final = re.compile(r"_session_([A-Za-z0-9-]{8,})$")
_OWN_PREFIX: Final = b"x-palimpsest-"
KEY_HEADER: Final = "x-palimpsest-key"
_HOP_BY_HOP: Final = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
}
_NOT_SENT_UP: Final = {b"host", b"content-length", b"expect"}
_NOT_SENT_DOWN: Final = {b"date", b"server"}
"""Every server sets its own."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A session's name. `configured` names were configured for Palimpsest; others are the client's own."""

    session: str
    configured: bool


def identify(headers: Mapping[str, str], path: str | None, body: Mapping[str, Json] | None) -> Identity | None:
    """Return the session of a call; None if nothing names one.

    `headers` have lower-case names, `path` is the URL's name. Names for Palimpsest come first: its header, then the
    path. Then come the names that clients send by default: Claude Code, Codex, opencode, and Anthropic's
    `metadata.user_id`. Cache keys and system prompts do not count: they change within a session and are shared between
    sessions. Raises InvalidRequest for an illegal name.
    """
    name = session_of_client(headers, path, SESSION_ID_PATTERN)
    if name is not None:
        return Identity(name, configured=True)
    sent = _from_headers(headers) or _from_body(body)
    return None if sent is None else Identity(legal_name(sent), configured=False)


def legal_name(text: str) -> str:
    """Return a session's name for any text: the text if it is legal, else a legal name that ends with its hash."""
    if len(text) <= NAME_CHARS_MAX and _NAME.fullmatch(text) is not None:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{_ILLEGAL.sub('-', text)[: NAME_CHARS_MAX - 1 - len(digest)]}.{digest}"


def _from_headers(headers: Mapping[str, str]) -> str | None:
    """Return the name in the client's own headers; each agent or thread of a session has a log of its own."""
    for session_name, part_name in (
        ("x-claude-code-session-id", "x-claude-code-agent-id"),
        ("session-id", "thread-id"),
    ):
        session, part = headers.get(session_name), headers.get(part_name)
        if session:
            return session if not part or part == session else f"{session}:{part}"
    return headers.get("thread-id") or headers.get("x-session-id") or None


def _from_body(body: Mapping[str, Json] | None) -> str | None:
    """Return Anthropic's `metadata.user_id`, or the session that Claude Code writes into it."""
    metadata = None if body is None else body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str) or not user:
        return None
    if user.startswith("{") and len(user) <= USER_CHARS_MAX:
        try:
            session = json.loads(user).get("session_id")
        except (ValueError, RecursionError):
            session = None
        if isinstance(session, str) and session:
            return session
    found = _SESSION_OF_USER.search(user)
    return found[1] if found else user


def request_fields(fields: Fields, *, plain: bool, without_beta: str | None = None) -> list[tuple[bytes, bytes]]:
    """Return the fields of a request to send upstream, without hop-by-hop fields and ours.

    `plain`: the gateway reads the response, which must not be compressed. `without_beta`: the name of a beta feature
    that the request no longer uses.
    """
    left_out = _NOT_SENT_UP | _hop_by_hop(fields) | ({b"accept-encoding"} if plain else set())
    kept = _without(fields, left_out)
    if without_beta is not None:
        kept = [field for one in kept if (field := _without_beta(*one, without_beta.encode())) is not None]
    return [*kept, (b"accept-encoding", b"identity")] if plain else kept


def _without_beta(name: bytes, value: bytes, beta: bytes) -> tuple[bytes, bytes] | None:
    """Return a field without a beta feature; None if it names no other."""
    betas = [one.strip() for one in value.split(b",")]
    if name.lower() != b"anthropic-beta" or beta not in betas:
        return name, value
    others = [one for one in betas if one != beta]
    return (name, b",".join(others)) if others else None


def response_fields(fields: Fields, *, changed: bool) -> list[tuple[bytes, bytes]]:
    """Return the fields of a response to send to the client. `changed`: its bytes are not those that were received."""
    changing = {b"content-length", b"content-encoding"} if changed else set()
    return _without(fields, _NOT_SENT_DOWN | _hop_by_hop(fields) | changing)


def secrets(fields: Fields, query: bytes = b"") -> tuple[str, ...]:
    """Return the values in a request that may be credentials, under any name that is not known to be public."""
    found = {
        (field, one)
        for field, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
        for one in credentials(value)
    }
    for pair in query.decode("latin-1").split("&"):
        name, _, text = pair.partition("=")
        found |= {(unquote(name), text), (unquote(name), unquote_plus(text))}
    return tuple(sorted({value for name, value in found if may_be_secret(name, value)}))


def _hop_by_hop(fields: Fields) -> set[bytes]:
    """Return the hop-by-hop fields, including those that `Connection` names."""
    named = {
        one.strip().lower() for name, value in fields if name.lower() == b"connection" for one in value.split(b",")
    }
    return _HOP_BY_HOP | named


def _without(fields: Fields, left_out: set[bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value)
        for name, value in fields
        if name.lower() not in left_out and not name.lower().startswith(_OWN_PREFIX)
    ]


CONNECT_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60.0
"""Time that an unused connection is kept."""
ERROR_BYTES_MAX: Final = 64 * 1024
"""Bytes of an error's body that are read, both before and after unpacking."""
STREAM_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of a stream that are read, after unpacking."""


class UpstreamError(Exception):
    """The upstream is unreachable, or its response broke off, as the message says. `timed_out`: it was too slow."""

    def __init__(self, detail: str, *, timed_out: bool = False) -> None:
        super().__init__(detail)
        self.timed_out = timed_out


class Upstream:
    """One provider's API. Redirects and cookies are left to the client."""

    def __init__(self, url: str, timeout_seconds: float, window_tokens: int | None = None) -> None:
        """`timeout_seconds` limits silence. `window_tokens` is the window of its models, whatever their names."""
        self.url = url
        self.window_tokens = window_tokens
        self.host = urlsplit(self.url).hostname
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout_seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def request(
        self, method: str, target: str, fields: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request to `target`, path and query; yield the response with its body unread. Raises UpstreamError."""
        try:
            request = httpx2.Request(method, self.url + target, headers=list(fields), content=body or None)
            response = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _no_response(error) from None
        try:
            yield response
        finally:
            await response.aclose()

    async def post(self, target: str, fields: Fields, body: bytes) -> tuple[int, bytes] | None:
        """Post a request; return the response's status and body, if any. Reading stops above JSON_BYTES_MAX."""
        taken = bytearray()
        try:
            async with self.request("POST", target, fields, body) as response:
                async for piece in raw_pieces(response):
                    taken += piece
                    if len(taken) > JSON_BYTES_MAX:
                        break
        except UpstreamError:
            return None
        return response.status_code, bytes(taken)


async def raw_pieces(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the body of a response as it arrives, still compressed. Raises UpstreamError."""
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx2.HTTPError as error:
        raise _no_response(error) from None


def _no_response(error: Exception) -> UpstreamError:
    """Return an error without the original text, which may quote header fields."""
    late = isinstance(error, httpx2.ReadTimeout)
    return UpstreamError(f"the upstream gave no answer: {type(error).__name__}", timed_out=late)


class Reader:
    """Extracts the reply from a response that is being streamed, within size limits.

    `bytes` counts the unpacked bytes read. `unread` says why reading stopped early; None if it did not. `rewrites`:
    `relay` yields other bytes than it receives.
    """

    def __init__(
        self, conversation: CallConversation, headers: Mapping[str, str], item: Mapping[str, Json] | None = None
    ) -> None:
        """`item` is to be inserted before the reply; streams of frames are left as they are."""
        self.unread: str | None = None
        kind = headers.get("content-type", "")
        self._framed = kind.startswith(FrameSplitter.CONTENT_TYPE)
        self.streams = self._framed or kind.startswith("text/event-stream")
        self.bytes = 0
        self._bytes_max = STREAM_BYTES_MAX if self.streams else JSON_BYTES_MAX
        self._splitter = FrameSplitter() if self._framed else Splitter()
        self._accumulator = conversation.accumulator()
        self._stored = bytearray()
        try:
            self._unpacker = Unpacker(headers.get("content-encoding", ""))
        except Unreadable as error:
            self.unread = str(error)
        inserts = item is not None and not self._framed and self.unread is None
        self._insertion = INSERTIONS[conversation.format](item) if inserts and item is not None else None
        self._hides_usage = self.streams and conversation.hides_usage and self.unread is None
        self.rewrites = self._hides_usage or self._insertion is not None

    async def relay(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces; with `rewrites`, unpacked, without the usage that only we requested, and with the item."""
        async for piece in pieces:
            if not self.rewrites:
                yield piece  # the client gets it first
                if self.unread is not None:
                    continue
            try:
                for plain in self._unpacker.feed(piece):
                    to_client = self._read(plain)
                    if self.rewrites and to_client:
                        yield to_client
                    if self.unread is not None and not self.rewrites:
                        break
                    await asyncio.sleep(0)
            except Unreadable as error:
                if self.rewrites:
                    raise UpstreamError(f"the upstream's answer cannot be unpacked: {error}") from None
                self._stop(str(error))
        rest = self._read_events([self._splitter.end()])
        if self._insertion is not None and not self.streams:
            rest = await asyncio.to_thread(self._insertion.rewrite_response, bytes(self._stored))
        if rest and self.rewrites:
            yield rest

    def _read(self, plain: bytes) -> bytes:
        """Read a slice of the response; return the part of it to send to the client."""
        if self.streams:
            return self._read_events(self._splitter.feed(plain))
        # _count_bytes may clear what is stored, so take it first: a body that is too large is passed on unchanged.
        held = bytes(self._stored) if self._insertion and self.bytes + len(plain) > self._bytes_max else b""
        self._count_bytes(plain)
        self._stored += plain if self.unread is None else b""
        if self._insertion is None:
            return plain
        return b"" if self.unread is None else held + plain

    def _read_events(self, chunks: Sequence[Chunk]) -> bytes:
        to_client: list[bytes] = []
        for raw, event in chunks:
            self._count_bytes(raw)
            value = None
            try:
                value = self._splitter.read(raw) if event else None
                if value is not None and self.unread is None:
                    self._accumulator.feed(value)
            except TooLarge as error:
                self._stop(f"an event of it is too large: {error}")
            except BadFrame as error:
                self._stop(str(error))
            except Exception as error:
                structlog.get_logger().error("gateway", exc_info=error)
                self._stop("an event of it could not be read")
            if value is not None and self._insertion is not None:
                raw = self._insertion.rewrite_event(raw, value)
            if value is None or not (self._hides_usage and is_usage_only(value)):
                to_client.append(raw)
        if self._splitter.oversized:
            self._stop(f"an event of it has more than {JSON_BYTES_MAX} bytes")
        return b"".join(to_client)

    def _count_bytes(self, raw: bytes) -> None:
        self.bytes += len(raw)
        if self.bytes > self._bytes_max:
            self._stop(f"it has more than {self._bytes_max} bytes")

    def _stop(self, why: str) -> None:
        self.unread = self.unread or why
        self._stored.clear()

    def reply(self) -> Reply:
        """Return the reply: of a stream as far as it was read, of a single body only if it is complete."""
        if self.streams:
            found = self._accumulator.reply()
            return found if self.unread is None else replace(found, complete=False)
        text = bytes(self._stored)
        listed = text[:1] == b"["  # Gemini's stream without server-sent events is one list
        try:
            value = parse_object(b'{"all":%b}' % text if listed else text)
        except TooLarge as error:
            self._stop(str(error))
            value = None
        if listed and value is not None:
            for one in objects(value.get("all")):
                self._accumulator.feed(one)
            return self._accumulator.reply()
        return Reply() if value is None else self._accumulator.read(value)


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """Return the first `most` bytes of a body, or of the beginning of one, unpacked; none if it is unreadable."""
    found = bytearray()
    try:
        for piece in Unpacker(encoding).feed(body):
            found += piece
            if len(found) >= most:
                break
    except Unreadable:
        return b""
    return bytes(found[:most])
