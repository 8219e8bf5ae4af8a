"""Providers of models: the protocol of those that write summaries, their errors by kind, and what is read of their
answers: in slices, and without credentials.
"""

import base64
import binascii
import html
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from importlib.resources import files
from typing import Final, Literal, Protocol, TypeAlias
from urllib.parse import unquote

from app.core.compaction.prompt import Completion, Prompt


class Summarizer(Protocol):
    """A model that writes summaries."""

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """Call the model, for at most `timeout` seconds. Raises ProviderError for every failure."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


CHARS_PER_TOKEN: Final = 3.0
"""Characters per token, to estimate a request's cost before the provider has reported it."""


def expected_tokens(ask: Prompt) -> int:
    """Return the approximate maximum of tokens that a request may cost: its own and the longest answer's."""
    return math.ceil((len(ask.system) + len(ask.prompt)) / CHARS_PER_TOKEN) + ask.max_tokens


def cost(answer: Completion, reserved: int) -> int:
    """Return the tokens that an answer cost; `reserved` if the provider did not report them."""
    if answer.input_tokens is None or answer.output_tokens is None:
        return reserved
    return answer.input_tokens + answer.output_tokens


_SUFFIX: Final = ".md"


def load_prompts() -> Mapping[str, str]:
    """Read all prompts, by name and version, such as `structured.v1`. A version's text never changes."""
    folder = files("app") / "prompts"
    return {
        entry.name.removesuffix(_SUFFIX): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(_SUFFIX)
    }


Kind: TypeAlias = Literal[
    "rate_limited",
    "overloaded",
    "server",
    "timeout",
    "connection",
    "context_too_long",
    "auth",
    "invalid",
    "spent",
    "open",
]
"""`spent`: a quota or spending limit is used up. `open`: the provider failed too often just now and was not called."""

RETRYABLE: Final = frozenset({"rate_limited", "overloaded", "server", "timeout", "connection"})
DETAIL_CHARS_MAX: Final = 300


class ProviderError(Exception):
    """A model could not be called, or gave no answer.

    `retryable` is whether the same request may succeed later, `retry_after` after how many seconds (None: unknown).
    After `context_too_long`, a shorter request may succeed: one of `room` tokens (None: unknown).
    """

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        retry_after: float | None = None,
        retryable: bool | None = None,
        room: int | None = None,
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail[:DETAIL_CHARS_MAX]
        self.retry_after = retry_after
        self.room = room
        self.retryable = kind in RETRYABLE if retryable is None else retryable

    def redacted(self, key: str) -> "ProviderError":
        """Return the error without any quote of the key."""
        detail = redacted(self.detail, (key,))
        return ProviderError(self.kind, detail, retry_after=self.retry_after, retryable=self.retryable, room=self.room)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait, None if it does not; dates are relative to its own."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
            return max(0.0, seconds) if math.isfinite(seconds) else None
        except (KeyError, ValueError):
            continue
    try:
        until, now = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        return max(0.0, (until - now).total_seconds())
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


SLICE_BYTES: Final = 16 * 1024
"""Bytes that are unpacked and read before other tasks get a turn."""
_ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class Unreadable(Exception):
    """A body cannot be unpacked."""


class Unpacker:
    """Unpacks a body in slices of at most SLICE_BYTES, whatever a piece of it expands to."""

    def __init__(self, encoding: str) -> None:
        """Take the body's Content-Encoding. Raises Unreadable for an unknown one."""
        name = encoding.strip().lower()
        self._unzip = zlib.decompressobj(_GZIP_OR_ZLIB) if name in _ENCODINGS else None
        if self._unzip is None and name not in ("", "identity"):
            raise Unreadable(f"its encoding is {name[:40]!r}")

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the unpacked slices of a piece of the body. Raises Unreadable."""
        if self._unzip is None:
            for start in range(0, len(piece), SLICE_BYTES):
                yield piece[start : start + SLICE_BYTES]
            return
        try:
            # Even without input left there may be output that the limit held back.
            while (found := self._unzip.decompress(piece, SLICE_BYTES)) or self._unzip.unconsumed_tail:
                yield found
                piece = self._unzip.unconsumed_tail
        except zlib.error:
            raise Unreadable("its compression is broken") from None


REDACTED: Final = "[key]"
SECRET_CHARS_MIN: Final = 6
"""Length of the shortest credential. Replacing shorter values would garble other texts."""
QUOTED_CHARS_MIN: Final = 8
"""Length from which a part of a credential is redacted: texts are cut, and providers shorten their quotes."""
LAYERS_MAX: Final = 3
"""Nested encodings that are undone, such as an upstream's JSON in a string of a proxy's."""
RANDOM_CHARS_MIN: Final = 16
"""Length from which letters or digits alone count as a credential under a neutral name."""
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([\"/\\]))")
_PAIRS: Final = re.compile(r"(?:[0-9a-fA-F]{2}[ :,]){5,}[0-9a-fA-F]{2}")
_SECRET_NAME: Final = re.compile(
    r"key|token|secret|auth|cookie|pass|pwd|credential|signature|bearer|jwt|\b(?:sig|pat|pin)\b", re.IGNORECASE
)
_PUBLIC_NAME: Final = re.compile(
    r"accept.*|content-.*|user-agent|host|origin|referer|date|range|if-.*|cache-control|pragma|connection|dnt|priority|"
    r"sec-.*|via|(?:x-)?forwarded.*|x-real-ip|traceparent|tracestate|baggage|x-b3-.*|(?:x-)?(?:client-)?request-id|"
    r"x-correlation-id|x-app|x-stainless-.*|x-goog-api-client|x-palimpsest-.*|anthropic-(?:version|beta|dangerous-.*)|"
    r"openai-(?:beta|organization|project|version)|api-version|beta|alt",
    re.IGNORECASE,
)
"""Names of fields and parameters that many clients send and that errors may repeat."""


def may_be_secret(name: str, value: str) -> bool:
    """Return whether a value under this name may be a credential.

    Under a neutral name, words and numbers do not count: replacing them would garble other texts.
    """
    if _SECRET_NAME.search(name):
        return len(value) >= SECRET_CHARS_MIN
    if _PUBLIC_NAME.fullmatch(name) or len(value) < QUOTED_CHARS_MIN:
        return False
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return mixed or len(value) >= RANDOM_CHARS_MIN


def credentials(value: str) -> Iterable[str]:
    """Yield the secrets in a header field's value: its words without a scheme, and the values in Basic and cookies."""
    scheme, *words = value.split() or [""]
    yield from words if words and scheme.isalpha() else (scheme, *words)
    if scheme.lower() == "basic" and words:
        try:
            user = base64.b64decode(words[0]).decode("latin-1")
        except binascii.Error:
            return
        yield user
        yield user.partition(":")[2]
    yield from (pair.partition("=")[2].strip(' "') for pair in re.split("[;,]", value) if "=" in pair)


def redacted(text: str, hidden: Collection[str]) -> str:
    """Return a text without its quotes of the credentials, also those in JSON, URLs, HTML, hexadecimal, base32 and
    base64, or in two of them nested."""
    grams = _grams(hidden)
    text = plain = _without(text, grams)
    for _ in range(LAYERS_MAX):
        plain = _decode_layer(plain)
        without = _without(plain, grams)
        if without != plain:
            text = plain = without
    return text


def _without(text: str, grams: Collection[str]) -> str:
    """Replace all stretches of a text that consist of the grams."""
    marked = bytearray(len(text))
    for size in {len(gram) for gram in grams}:
        for start in range(len(text) - size + 1):
            if text[start : start + size] in grams:
                marked[start : start + size] = b"\1" * size
    pieces, end = [], 0
    for found in re.finditer(b"\1+", marked):
        pieces += [text[end : found.start()], REDACTED]
        end = found.end()
    return "".join([*pieces, text[end:]])


def _grams(hidden: Collection[str]) -> frozenset[str]:
    """Return the parts by which a credential is found, in each of its encodings."""
    found: set[str] = set()
    for secret in hidden:
        for written in (secret, *_encoded(secret)):
            size = min(QUOTED_CHARS_MIN, len(written))
            if size >= SECRET_CHARS_MIN:
                found |= {written[start : start + size] for start in range(len(written) - size + 1)}
    return frozenset(found)


def _encoded(secret: str) -> Iterable[str]:
    """Yield a credential in hexadecimal, base32, base64, and base64 of base64."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield raw.hex()
    yield raw.hex().upper()
    yield from _in_groups(raw, base64.b32encode, 5, 8)
    for text in _in_groups(raw, base64.b64encode, 3, 4):
        for one in (text, text.translate({ord("+"): "-", ord("/"): "_"})):
            yield one
            yield from _in_groups(one.encode(), base64.b64encode, 3, 4)


def _in_groups(raw: bytes, encode: Callable[[bytes], bytes], size: int, chars: int) -> Iterable[str]:
    """Yield the encodings of bytes at each offset in a group of `size` bytes, written as `chars` characters."""
    for before in range(size):
        whole = (before + len(raw)) // size * chars  # a last group that is not full depends on what follows
        yield encode(bytes(before) + raw).decode()[-(-before * chars // size) : whole]


def _decode_layer(text: str) -> str:
    """Undo one layer of the escapes of JSON, Python, HTML and URLs, and join hexadecimal pairs."""
    text = _ESCAPE.sub(lambda found: found[3] or chr(int(found[1] or found[2], 16)), text)
    text = _PAIRS.sub(lambda found: re.sub("[ :,]", "", found[0]), text)
    return unquote(html.unescape(text))
