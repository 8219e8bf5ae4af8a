"""Words of a text: split, stemmed, and without stop words."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from snowballstemmer.english_stemmer import EnglishStemmer

from app.core.lexicon.identifiers import pieces, unescaped

_STOP_WORDS: Final = (
    "a about above after again all also am an and any are as at be because been before being below between both "
    "but by can could did do does doing don down during each for from further get got had has have having he her "
    "here hers herself him himself his how i if in into is isn it its itself just let ll me more most my myself "
    "no nor not now of off on once only or other our ours ourselves out over own re s same she should so some "
    "such t than that the their theirs them themselves then there these they this those through to too under "
    "until up ve very was we were what when where which while who whom whose why will with would you your yours "
    "yourself"
)
_CONVERSATION: Final = (
    "ah done hm hmm i'd i'll i'm i've isn't it's let's like need oh ok okay one see that's there's uh uhm um us we'll "
    "we're yeah yes you're"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""Words that no search uses."""
SMALL_TALK: Final = STOP_WORDS | frozenset(_CONVERSATION.split())
"""Stop words and conversational fillers: a search may use a filler, but it makes no sentence important."""


_FORMS: Final = (
    "go went gone; buy bought; see saw seen; take took taken; make made; get got gotten; give gave given; find found;"
    "tell told; think thought; feel felt; leave left; meet met; run ran; begin began begun; write wrote written;"
    "speak spoke spoken; choose chose chosen; teach taught; catch caught; bring brought; win won; lose lost; pay paid;"
    "send sent; spend spent; build built; sell sold; hold held; keep kept; sleep slept; eat ate eaten;"
    "drink drank drunk; drive drove driven; ride rode ridden; fly flew flown; swim swam swum; sing sang sung;"
    "wear wore worn; break broke broken; grow grew grown; know knew known; throw threw thrown; draw drew drawn;"
    "fall fell fallen; come came; become became; hear heard; say said; stand stood; understand understood; sit sat;"
    "fight fought; wake woke woken; steal stole stolen; forget forgot forgotten; show shown; hide hid hidden;"
    "bite bit bitten; blow blew blown; deal dealt; dream dreamt; learn learnt; lead led; lend lent; light lit;"
    "mean meant; ring rang rung; rise rose risen; seek sought; shake shook shaken; shoot shot; strike struck;"
    "swear swore sworn; tear tore torn; child children; man men; woman women; foot feet; tooth teeth; mouse mice;"
    "person people; life lives; wife wives; knife knives; half halves; leaf leaves; shelf shelves"
)
_IRREGULAR: Final = {form: base for base, *forms in (group.split() for group in _FORMS.split(";")) for form in forms}


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the stem of a lower-case English word, an irregular form first replaced by its base.

    A word with any character other than ASCII letters is returned unchanged.
    """
    if not word.isascii() or not word.isalpha():
        return word
    # A new stemmer for each word: a stemmer holds the word as state, and searches run in several threads.
    stemmed: str = EnglishStemmer().stemWord(_IRREGULAR.get(word, word))
    return stemmed


WHOLE_CHARS_MAX: Final = 200
PART_CHARS_MAX: Final = 64
"""A longer run of characters is considered data, not a name: it is found by its parts alone, or not at all."""

_CHUNK: Final = re.compile(r"[^\s\"'`“”‘’(){}\[\]<>,;|*]+(?:['’][^\W\d_]{1,2}\b)?")
_JOINED: Final = re.compile(r"[/=:?&@#\\+!~^%$…]+")
_PIECE: Final = re.compile(r"[^\W_]+")
_CAMEL: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
"""Scripts without spaces between words: each pair of adjacent characters is a term."""
_WORD: Final = re.compile(r"[^\W_](?:[\w'/-]|\.(?!\.))*[^\W_]|[^\W_]")
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
