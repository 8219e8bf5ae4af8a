"""JSON in a form that Postgres can hold: NUL and lone surrogates, which its text cannot have, are replaced.

A `json` column would keep their escapes, but every operator would fail on the document. They are replaced by a
noncharacter of Unicode and the digits of the escape.
"""

import json
import re
from typing import Final

from app.core.log.events import Json, canonical_json

_MARK: Final = "\ufdd0"
_ESCAPES: Final = re.compile(r"\\(?:u(0000|d[89a-f][0-9a-f]{2})|.)")
_MARKED: Final = re.compile(f"{_MARK}(=|0000|d[89a-f][0-9a-f]{{2}})")


def stored(text: str) -> str:
    """Return the stored form of a canonical JSON text."""
    if _MARK in text:
        text = text.replace(_MARK, f"{_MARK}=")
    if "\\u0000" in text or "\\ud" in text:
        text = _ESCAPES.sub(lambda found: f"{_MARK}{found[1]}" if found[1] else found[0], text)
    return text


def restored(text: str) -> str:
    """Return the JSON text that `stored` was given."""
    if _MARK not in text:
        return text
    return _MARKED.sub(lambda found: _MARK if found[1] == "=" else f"\\u{found[1]}", text)


def dumps(value: Json) -> str:
    """Return the stored JSON text of a value."""
    return stored(canonical_json(value))


def loads(text: str) -> Json:
    """Return the value that `dumps` was given."""
    return json.loads(restored(text))
