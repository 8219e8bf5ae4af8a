"""Redaction of credentials that other parties' texts quote: whole or cut, plain or encoded."""

import base64
import binascii
import html
import re
from collections.abc import Callable, Collection, Iterable
from typing import Final
from urllib.parse import unquote

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


def names_a_secret(name: str) -> bool:
    """Return whether the name of a header field or a parameter says that it holds a credential."""
    return _SECRET_NAME.search(name) is not None


def may_be_secret(name: str, value: str) -> bool:
    """Return whether a value under this name may be a credential.

    Under a neutral name, words and numbers do not count: replacing them would garble other texts.
    """
    if names_a_secret(name):
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
        plain = _decoded(plain)
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


def _decoded(text: str) -> str:
    """Undo one layer of the escapes of JSON, Python, HTML and URLs, and join hexadecimal pairs."""
    text = _ESCAPE.sub(lambda found: found[3] or chr(int(found[1] or found[2], 16)), text)
    text = _PAIRS.sub(lambda found: re.sub("[ :,]", "", found[0]), text)
    return unquote(html.unescape(text))
