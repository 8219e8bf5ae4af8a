"""JSON as Postgres can hold it: what its text cannot say (NUL, lone surrogates) is written otherwise, and read back.

A `json` column would keep such escapes, but no operator could look into the document any more. In their place stands
a character that Unicode will never assign, and what it is for.
"""

import json
import re
from typing import Final

from app.core.log.events import Json, canonical_json

_MARK: Final = "\ufdd0"
_ESCAPES: Final = re.compile(r"\\(?:u(0000|d[89a-f][0-9a-f]{2})|.)")
_MARKED: Final = re.compile(f"{_MARK}(=|0000|d[89a-f][0-9a-f]{{2}})")


def stored(text: str) -> str:
    """Canonical JSON text as it is stored."""
    if _MARK in text:
        text = text.replace(_MARK, f"{_MARK}=")
    if "\\u0000" in text or "\\ud" in text:
        text = _ESCAPES.sub(lambda found: f"{_MARK}{found[1]}" if found[1] else found[0], text)
    return text


def restored(text: str) -> str:
    """The JSON text that `stored` was given."""
    if _MARK not in text:
        return text
    return _MARKED.sub(lambda found: _MARK if found[1] == "=" else f"\\u{found[1]}", text)


def dumps(value: Json) -> str:
    """A value as the JSON text that is stored."""
    return stored(canonical_json(value))


def loads(text: str) -> Json:
    """The value that `dumps` was given."""
    return json.loads(restored(text))
