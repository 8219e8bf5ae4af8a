"""Errors of providers by kind, from HTTP statuses and overflow patterns, and the redaction of credentials in texts."""

import base64
import binascii
import html
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote

from app.core.policy.overflow import MESSAGE_CHARS_MAX, classify

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


_QUOTA: Final = re.compile(r"insufficient_quota|exceeded your current quota|credit balance|spend(?:ing)? limit", re.I)
_UNSUPPORTED: Final = re.compile(
    r"unsupported (?:parameter|value)|not supported|does not support|deprecated|unrecognized"
    r"|unknown (?:parameter|field)|extra (?:inputs|fields)|not permitted",
    re.IGNORECASE,
)
_STATUSES: Final[Mapping[int, Kind]] = {
    401: "auth",
    402: "spent",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_too_long",
    425: "server",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def too_long(message: str) -> bool:
    """Return whether an error's message says that the request does not fit the model's window."""
    return classify(message) is not None


def failure(status: int, message: str, headers: Mapping[str, str]) -> ProviderError:
    """Return the error for a response. `message` is its body, or the text that the provider's client made of it."""
    message = message[:MESSAGE_CHARS_MAX]
    kind, overflow = _kind(status, message), classify(message)
    room = overflow.room if overflow is not None and kind == "context_too_long" else None
    return ProviderError(kind, _detail(status, message), retry_after=retry_after(headers), room=room)


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


def rejected_parameter(message: str, sent: Collection[str]) -> str | None:
    """Return the parameter in `sent` that the model does not accept, by its error message; None for another error."""
    if not _UNSUPPORTED.search(message):
        return None
    return next((name for name in sent if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message)), None)


def _kind(status: int, message: str) -> Kind:
    wordless = message in ("", f"Error code: {status}")  # how some providers report an overflow
    if (status in (400, 413, 422, 500) and too_long(message)) or (status == 400 and wordless):
        return "context_too_long"
    if status in (400, 403, 429) and _QUOTA.search(message):
        return "spent"
    if known := _STATUSES.get(status):
        return known
    return "server" if status >= 500 else "invalid"


def _detail(status: int, message: str) -> str:
    """Return the message to show and store, without a refused key, which the provider quotes."""
    if status in (401, 403):
        return f"HTTP {status}: the provider refused the key"
    return f"HTTP {status}: {' '.join(message.split())}"[:DETAIL_CHARS_MAX]


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
