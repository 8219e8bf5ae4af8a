"""Texts and JSON in a form that Postgres can store, sealed if there is a cipher for their tenant's contents.

NUL and lone surrogates, which Postgres' texts cannot have, are replaced by a noncharacter of Unicode and the digits of
the escape: a `json` column would keep their escapes, but every operator would fail on the document. Sealed content
begins with the same noncharacter, so that nothing else looks like it.
"""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol
from uuid import UUID

from app.core.errors import StoreUnavailable
from app.core.log.events import Json, canonical_json

_MARK: Final = "\ufdd0"
_ESCAPES: Final = re.compile(r"\\(?:u(0000|d[89a-f][0-9a-f]{2})|.)")
_MARKED: Final = re.compile(f"{_MARK}(=|0000|d[89a-f][0-9a-f]{{2}})")
_SEALED: Final = f"{_MARK}sealed"
SEALED_JSON: Final = f'{{"{_SEALED}":"'
"""The beginning of every sealed JSON text."""


class ContentCipher(Protocol):
    """A cipher for a tenant's contents."""

    def seal(self, text: str) -> str:
        """Return a text sealed, in characters that JSON need not escape."""

    def open(self, sealed: str) -> str:
        """Return the text that was sealed. Raises StoreUnavailable if this cipher cannot open it."""

    def salt(self, session_id: UUID) -> bytes:
        """Return the secret that a session's search terms are hashed with."""


class ContentCiphers:
    """The default source of ciphers, which has none: contents are stored in plain text. A wing may replace it."""

    async def cipher(self, tenant_id: UUID) -> ContentCipher | None:
        """Return the cipher of a tenant's contents; None to store them in plain text.

        The caller must act for the tenant. Raises ContentsErased if they can never be opened again, StoreUnavailable if
        they cannot be opened now.
        """
        return None


_cipher: Final[ContextVar[ContentCipher | None]] = ContextVar("cipher", default=None)


def seal_with(cipher: ContentCipher | None) -> None:
    """Seal and open contents with this cipher in the rest of this task; None stores them in plain text."""
    _cipher.set(cipher)


@contextmanager
def sealing_with(cipher: ContentCipher | None) -> Iterator[None]:
    """Seal and open contents with this cipher within the block; None stores them in plain text."""
    before = _cipher.set(cipher)
    try:
        yield
    finally:
        _cipher.reset(before)


def cipher_in_use() -> ContentCipher | None:
    """Return the cipher in use; None if contents are stored in plain text."""
    return _cipher.get()


def _open(sealed: str) -> str:
    cipher = _cipher.get()
    if cipher is None:
        raise StoreUnavailable("contents are sealed, and this process has no key to open them")
    return cipher.open(sealed)


def stored(text: str, *, clear: Collection[str] = ()) -> str:
    """Return the stored form of a canonical JSON text. If it is sealed, the object's members in `clear`, which
    statements read, stay legible."""
    cipher = _cipher.get()
    if cipher is None:
        return _escape(text)
    value = json.loads(text) if clear else {}
    legible = canonical_json({name: value[name] for name in clear if name in value})
    rest = "}" if legible == "{}" else "," + _escape(legible)[1:]
    return f'{SEALED_JSON}{cipher.seal(text)}"{rest}'


def unsealed(text: str) -> str:
    """Return a stored JSON text as it would be stored unsealed. Raises StoreUnavailable without its key."""
    if not text.startswith(SEALED_JSON):
        return text
    sealed = text[len(SEALED_JSON) : text.index('"', len(SEALED_JSON))]
    return _escape(_open(sealed))


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
    cipher = _cipher.get()
    if cipher is None:
        return words.removeprefix(_MARK) if words.startswith(_SEALED) else words
    return _SEALED + cipher.seal(words) if words else ""


def open_text(words: str) -> str:
    """Return the words of their stored form. Raises StoreUnavailable if they are sealed and their key is missing."""
    return _open(words[len(_SEALED) :]) if words.startswith(_SEALED) else words


def _escape(text: str) -> str:
    if _MARK in text:
        text = text.replace(_MARK, f"{_MARK}=")
    if "\\u0000" in text or "\\ud" in text:
        text = _ESCAPES.sub(lambda found: f"{_MARK}{found[1]}" if found[1] else found[0], text)
    return text
