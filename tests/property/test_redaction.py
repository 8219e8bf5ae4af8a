"""No long part of a credential is left in a text, however the text encodes it and wherever it is cut."""

import base64
import html
import json
import string
from collections.abc import Callable
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from app.providers import REDACTED, redacted

LEFT_MAX = 12
"""Characters of an encoded credential that a cut may leave, which are less than eight of the credential's own."""
WAYS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda text: json.dumps(text)[1:-1],
    "json in json": lambda text: json.dumps(json.dumps(text))[1:-1],
    "escapes": lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    "url": lambda text: quote(text, safe=""),
    "percent": lambda text: "".join(f"%{ord(char):02X}" for char in text),
    "bytes": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "html": html.escape,
    "hex": lambda text: text.encode().hex(),
    "hex in pairs": lambda text: text.encode().hex(" "),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "base64 twice": lambda text: base64.b64encode(base64.b64encode(f"Bearer {text}".encode())).decode(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "basic": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
    "basic, as the user": lambda text: base64.b64encode(f"{text}:".encode()).decode(),
    "bearer": lambda text: base64.b64encode(f"Bearer {text}\r\n".encode()).decode(),
}
keys = st.text(string.ascii_letters + string.digits + "-_.+/=~", min_size=16, max_size=80)
words = st.text(string.ascii_uppercase + " :,\"'{}", max_size=20)


@given(keys, st.sampled_from(sorted(WAYS)), words, words, st.integers(0, 30))
def test_no_way_to_write_a_key_leaves_it_readable(key: str, way: str, before: str, behind: str, cut: int) -> None:
    written = WAYS[way](key)
    kept = written[: len(written) - cut]
    text = redacted(f"{before} {kept} {behind}", (key,))
    pieces = {kept[start : start + LEFT_MAX * 6] for start in range(len(kept) - LEFT_MAX * 6 + 1)}
    if way not in ("escapes", "bytes", "percent", "json in json", "hex in pairs"):
        pieces = {kept[start : start + LEFT_MAX] for start in range(len(kept) - LEFT_MAX + 1)}
    without_key = WAYS[way]("")  # such as a scheme before it, which is no secret
    assert not [piece for piece in pieces if piece in text and piece not in without_key], text
    assert REDACTED in text or cut


@given(st.text(max_size=200), keys)
def test_other_texts_stay_as_they_are(text: str, key: str) -> None:
    if not any(key[start : start + 6] in text for start in range(len(key))):
        assert redacted(text, (key,)) == text


def test_the_words_of_an_overflow_stay() -> None:
    text = "prompt is too long: 213462 tokens > 200000 maximum, says %41 \\u0041 &amp;"
    assert redacted(text, ("sk-ant-0123456789abcdef", "a session token of a cookie")) == text
