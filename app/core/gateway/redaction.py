"""Redaction of credentials that somebody else's text quotes: whole or cut, plain or encoded."""

import base64
import binascii
import html
import re
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import unquote

REDACTED: Final = "[key]"
SECRET_CHARS_MIN: Final = 6
"""Length of the shortest credential. Replacing shorter values would garble other texts."""
QUOTED_CHARS_MIN: Final = 8
"""Length from which a part of a credential is redacted, too: texts are cut, and providers shorten what they quote."""
LAYERS_MAX: Final = 3
"""Encodings inside of encodings that are undone, such as an upstream's JSON in a string of a proxy's."""
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([\"/\\]))")
_SECRET_NAME: Final = re.compile(r"key|token|secret|auth|cookie|passw|credential|signature", re.IGNORECASE)


def names_a_secret(name: str) -> bool:
    """Return whether a header field or a parameter of this name may hold a credential."""
    return _SECRET_NAME.search(name) is not None


def credentials(value: str) -> Iterable[str]:
    """Yield what is secret in a header field's value: its words without a scheme, and what they and cookies hold."""
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
    """Return a text without what it quotes of the credentials, also in JSON, URLs, HTML, hexadecimal and base64."""
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
    """Return the parts by which a credential is found, in each way to write it."""
    found: set[str] = set()
    for secret in hidden:
        for written in (secret, *_encoded(secret)):
            size = min(QUOTED_CHARS_MIN, len(written))
            if size >= SECRET_CHARS_MIN:
                found |= {written[start : start + size] for start in range(len(written) - size + 1)}
    return frozenset(found)


def _encoded(secret: str) -> Iterable[str]:
    """Yield a credential in hexadecimal, and in base64 at each place that it may have in a group of three bytes."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield raw.hex()
    yield raw.hex().upper()
    for before in range(3):
        whole = (before + len(raw)) // 3 * 4  # a last group that is not full depends on what follows
        text = base64.b64encode(bytes(before) + raw).decode()[(0, 2, 3)[before] : whole]
        yield text
        yield text.translate({ord("+"): "-", ord("/"): "_"})


def _decoded(text: str) -> str:
    """Undo one layer of the escapes of JSON, HTML and URLs."""
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)
    return unquote(html.unescape(text))
