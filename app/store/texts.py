"""Texts and JSON in a form that Postgres can store, sealed if their tenant has a key.

NUL and lone surrogates, which Postgres' texts cannot have, are replaced by a noncharacter of Unicode and the digits of
the escape: a `json` column would keep their escapes, but every operator would fail on the document. Sealed content
(`sealing`) begins with the same noncharacter, so that nothing else looks like it.
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
    """Return the stored form of a canonical JSON text. If it is sealed, the object's members in `clear`, which
    statements read, stay legible."""
    sealer = sealing.current()
    if sealer is None:
        return _escape(text)
    value = json.loads(text) if clear else {}
    legible = canonical_json({name: value[name] for name in clear if name in value})
    rest = "}" if legible == "{}" else "," + _escape(legible)[1:]
    return f'{SEALED_JSON}{sealer.seal(text)}"{rest}'


def unsealed(text: str) -> str:
    """Return a stored JSON text as it would be stored unsealed. Raises StoreUnavailable without its key."""
    if not text.startswith(SEALED_JSON):
        return text
    sealed = text[len(SEALED_JSON) : text.index('"', len(SEALED_JSON))]
    return _escape(sealing.require_sealer().open(sealed))


def restore(text: str) -> str:
    """Return the JSON text of its stored form. Raises StoreUnavailable if it is sealed and its key is missing."""
    text = unsealed(text)
    if _MARK not in text:
        return text
    return _MARKED.sub(lambda found: _MARK if found[1] == "=" else f"\\u{found[1]}", text)


def dumps(value: Json, *, clear: Collection[str] = ()) -> str:
    """Return the stored JSON text of a value; for `clear` see `stored`."""
    return stored(canonical_json(value), clear=clear)


def loads(text: str) -> Json:
    """Return the value of a stored JSON text. Raises StoreUnavailable if it is sealed and its key is missing."""
    return json.loads(restore(text))


def seal_text(words: str) -> str:
    """Return the stored form of words in a text column; empty words stay empty."""
    sealer = sealing.current()
    if sealer is None:
        return words.removeprefix(_MARK) if words.startswith(_SEALED) else words
    return _SEALED + sealer.seal(words) if words else ""


def open_text(words: str) -> str:
    """Return the words of their stored form. Raises StoreUnavailable if they are sealed and their key is missing."""
    return sealing.require_sealer().open(words[len(_SEALED) :]) if words.startswith(_SEALED) else words


def _escape(text: str) -> str:
    if _MARK in text:
        text = text.replace(_MARK, f"{_MARK}=")
    if "\\u0000" in text or "\\ud" in text:
        text = _ESCAPES.sub(lambda found: f"{_MARK}{found[1]}" if found[1] else found[0], text)
    return text
