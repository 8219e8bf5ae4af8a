"""Texts and JSON in a form that Postgres can hold, and that only their tenant's key opens where it has one.

NUL and lone surrogates, which its text cannot have, are replaced by a noncharacter of Unicode and the digits of the
escape: a `json` column would keep their escapes, but every operator would fail on the document. The same noncharacter
begins what is sealed (`sealing`), so that nothing else looks like it.
"""

import json
import re
from collections.abc import Collection
from typing import Final

from app.core.log.events import Json, canonical_json
from app.store import sealing

_MARK: Final = "\ufdd0"
_ESCAPES: Final = re.compile(r"\\(?:u(0000|d[89a-f][0-9a-f]{2})|.)")
_MARKED: Final = re.compile(f"{_MARK}(=|0000|d[89a-f][0-9a-f]{{2}})")
_SEALED: Final = f"{_MARK}sealed"
SEALED_JSON: Final = f'{{"{_SEALED}":"'
"""The beginning of every sealed JSON text."""


def stored(text: str, *, clear: Collection[str] = ()) -> str:
    """Return the stored form of a canonical JSON text. Where it is sealed, `clear` names the members of the object that
    statements read: they stay legible."""
    sealer = sealing.current()
    if sealer is None:
        return _escaped(text)
    value = json.loads(text) if clear else {}
    legible = canonical_json({name: value[name] for name in clear if name in value})
    rest = "}" if legible == "{}" else "," + _escaped(legible)[1:]
    return f'{SEALED_JSON}{sealer.seal(text)}"{rest}'


def opened(text: str) -> str:
    """Return a stored JSON text as it would be stored unsealed. Raises StoreUnavailable without its key."""
    if not text.startswith(SEALED_JSON):
        return text
    sealed = text[len(SEALED_JSON) : text.index('"', len(SEALED_JSON))]
    return _escaped(sealing.opening().open(sealed))


def restored(text: str) -> str:
    """Return the JSON text that `stored` was given. Raises StoreUnavailable without the key of what is sealed."""
    text = opened(text)
    if _MARK not in text:
        return text
    return _MARKED.sub(lambda found: _MARK if found[1] == "=" else f"\\u{found[1]}", text)


def dumps(value: Json, *, clear: Collection[str] = ()) -> str:
    """Return the stored JSON text of a value; for `clear` see `stored`."""
    return stored(canonical_json(value), clear=clear)


def loads(text: str) -> Json:
    """Return the value that `dumps` was given. Raises StoreUnavailable without the key of what is sealed."""
    return json.loads(restored(text))


def written(words: str) -> str:
    """Return the stored form of words in a column of text; where there are none, none."""
    sealer = sealing.current()
    if sealer is None:
        return words.removeprefix(_MARK) if words.startswith(_SEALED) else words
    return _SEALED + sealer.seal(words) if words else ""


def read(words: str) -> str:
    """Return the words that `written` was given. Raises StoreUnavailable without the key of what is sealed."""
    return sealing.opening().open(words[len(_SEALED) :]) if words.startswith(_SEALED) else words


def _escaped(text: str) -> str:
    if _MARK in text:
        text = text.replace(_MARK, f"{_MARK}=")
    if "\\u0000" in text or "\\ud" in text:
        text = _ESCAPES.sub(lambda found: f"{_MARK}{found[1]}" if found[1] else found[0], text)
    return text
