"""The search terms of a text, by one rule for logged events and for queries.

A path, an option, an assignment or a name in camelCase or snake_case can be found whole and by its parts:
`app/store/views.py` also as `views.py`, `app`, `store` and `views`, `order_id=8841` also as `order_id` and `8841`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from app.core.lexicon.escapes import unescaped
from app.core.lexicon.pieces import pieces
from app.core.lexicon.stems import stem
from app.core.lexicon.stop_words import SMALL_TALK, STOP_WORDS

WHOLE_CHARS_MAX: Final = 200
PART_CHARS_MAX: Final = 64
"""A longer run of characters is considered data, not a name: it is found by its parts alone, or not at all."""

_CHUNK: Final = re.compile(r"[^\s\"'`“”‘’(){}\[\]<>,;|*]+(?:['’][^\W\d_]{1,2}\b)?")
_JOINED: Final = re.compile(r"[/=:?&@#\\+!~^%$…]+")
_PIECE: Final = re.compile(r"[^\W_]+")
_CAMEL: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
"""Scripts without spaces between words: each pair of adjacent characters is a term."""
_WORD: Final = re.compile(r"[^\W_][\w'./-]*[^\W_]|[^\W_]")
_EDGES: Final = ".,:;!?…·&-/=\\"


def terms(text: str) -> Iterator[str]:
    """Yield the terms of a text in order, with repeats. Takes time linear in the text."""
    for piece in pieces(text):
        for chunk in _CHUNK.findall(unescaped(piece)):
            yield from _cached_terms(chunk) if len(chunk) <= PART_CHARS_MAX else _chunk_terms(chunk)


def term_counts(text: str) -> Counter[str]:
    """Return the distinct terms of a text with their counts, in order of first occurrence. Takes linear time."""
    chunks: Counter[str] = Counter()
    for piece in pieces(text):
        chunks.update(_CHUNK.findall(unescaped(piece)))
    found: Counter[str] = Counter()
    known = found.get
    for chunk, count in chunks.items():
        for term in _cached_terms(chunk) if len(chunk) <= PART_CHARS_MAX else _chunk_terms(chunk):
            found[term] = known(term, 0) + count
    return found


def content_words(text: str) -> frozenset[str]:
    """Return the stems of the words that carry meaning, in lower case."""
    found = (word.lower() for word in _WORD.findall(text))
    return frozenset(stem(word.removesuffix("'s")) for word in found if word not in SMALL_TALK)


@lru_cache(maxsize=65_536)
def _cached_terms(chunk: str) -> Sequence[str]:
    """Return the terms of a run of characters without spaces; cached, because few runs make up most of a text."""
    return tuple(_chunk_terms(chunk))


def _chunk_terms(chunk: str) -> Sequence[str]:
    """Return the terms of a chunk: a plain word; else the whole chunk, its joined parts, and the words in these."""
    found: list[str] = []
    bare = chunk.rstrip(_EDGES).lstrip(".,:;!?…·&=")
    if not bare:
        return found
    whole = bare.lower()
    bare_pieces = _PIECE.findall(bare)
    if len(bare_pieces) == 1 and whole == bare_pieces[0].lower() and not _has_inner_capital(bare):
        _add_plain(whole, found)
        return found
    seen = {whole}
    if len(whole) <= WHOLE_CHARS_MAX and bare_pieces and not _has_apostrophe(bare):
        found.append(whole)
    for part in _JOINED.split(bare):
        part = part.strip(_EDGES)
        name = part.lower()
        pieces = _PIECE.findall(part)
        if len(pieces) > 1 and len(name) <= PART_CHARS_MAX and name not in seen and not _has_apostrophe(part):
            seen.add(name)
            found.append(name)
        for piece in pieces:
            _add_piece(piece, seen, found)
    return found


def _add_piece(piece: str, seen: set[str], found: list[str]) -> None:
    lower = piece.lower()
    words = _CAMEL.findall(piece) if _has_inner_capital(piece) else ()
    if len(words) > 1:
        if lower not in seen and len(lower) <= PART_CHARS_MAX:
            found.append(lower)
        for word in words:
            _add_plain(word.lower(), found)
    else:
        _add_plain(lower, found)


def _add_plain(word: str, found: list[str]) -> None:
    if word.isascii():
        _add_word(word, found)
        return
    at = 0
    for run in _UNSPACED.finditer(word):
        _add_word(word[at : run.start()], found)
        text = run[0]
        found += [text[i : i + 2] for i in range(max(1, len(text) - 1))]
        at = run.end()
    _add_word(word[at:], found)


def _add_word(word: str, found: list[str]) -> None:
    if word and word not in STOP_WORDS and len(word) <= PART_CHARS_MAX:
        found.append(stem(word) if word.isalpha() else word)


def _has_inner_capital(text: str) -> bool:
    return not text.islower() and not text.isupper() and any(map(str.isupper, text[1:]))


def _has_apostrophe(text: str) -> bool:
    return "'" in text or "’" in text
