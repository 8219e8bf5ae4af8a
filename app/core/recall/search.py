"""Full-text search over one session's log: what an event is found by, and BM25 over what the store finds.

A term is kept as a hash of itself and its session, so that one index over all sessions is asked for one session's
terms only, and holds no words. Everything here is a function of the log.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Final

from app.core.digest.diff import diffed
from app.core.digest.files import files_of, named
from app.core.lexicon.words import terms
from app.core.log.event import PATHS, Event
from app.core.log.events import DIALOGUE, EventType, readable

K1: Final = 1.0
B: Final = 0.3
"""BM25's saturation and length normalization. Events differ in length by what they are (a message, a file), not by how
much they repeat themselves: less normalization than the usual 0.75 does better (docs/benchmarks.md)."""
NEARBY: Final = (0.5, 0.3, 0.2, 0.1)
"""What an event gains of the scores of those 1, 2, ... seqs away, the better side: an answer is found by its question,
a result by its call."""
ANSWERS: Final = 2.0
"""How much more an event gains of a question right before it: it is the answer."""
ASKS: Final = 0.8
SPEAKS: Final = 1.25
"""What an event's score is multiplied by when it asks itself, and when it was said by somebody whom the query names."""
TERMS_VERSION: Final = 3
"""What of an event is a term. An index that was made by another version is made anew before it is searched."""
QUERY_TERMS_MAX: Final = 64
EVENT_TERMS_MAX: Final = 20_000
COUNT_MAX: Final = 32_767
OWN_TOOL: Final = "recall"
"""The tool that asks for a search: its calls and results repeat what was found before, and are not found again."""

ASKING: Final = "asks a question"
"""The mark of an event that ends with a question."""
ENDING_CHARS: Final = 400

_QUESTION: Final = re.compile(r"\?[\"')\s]{0,5}(?:\[[^\]]{0,300}\]\s{0,5})?$")
_SPEAKER: Final = re.compile(r"(?:\[[^\]\n]{1,80}\] ?)?([A-Z][\w .'-]{0,40}): ")
_MONTHS: Final = "january february march april may june july august september october november december"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What an event is found by: its terms with their counts, and its length in terms."""

    seq: int
    terms: Mapping[str, int]
    length: int


@dataclass(frozen=True, slots=True)
class Hit:
    """An event that holds at least one term of a query; `counts` are those of the query's terms, in its order.

    `asks`: it is a question. `speaks`: it was said by somebody whom the query names.
    """

    seq: int
    length: int
    counts: Sequence[int]
    asks: bool = False
    speaks: bool = False


@dataclass(frozen=True, slots=True)
class Corpus:
    """A session's statistics: how many events can be found, their terms in all, and how many hold each query term."""

    entries: int
    length: int
    holding: Sequence[int]


@dataclass(frozen=True, slots=True)
class Ranked:
    """An event and its score."""

    seq: int
    score: float


def entry(event: Event) -> IndexEntry | None:
    """What an event is found by; None for what is not searched: bookkeeping, the prefix, searches, redacted events."""
    if not event.rendered or event.body is None or event.body.get("redacted") or is_own(event.tool):
        return None
    words = Counter(terms(event.text))
    words.update(_about(event))
    length = words.total()
    words.update(f"path {ending}" for path in files(event) for ending in endings(path))
    marks = dict.fromkeys(_marks(event), 1)
    return IndexEntry(event.seq, marks | dict(islice(words.items(), EVENT_TERMS_MAX)), length)


def is_own(tool: str | None) -> bool:
    """Also under the names that MCP clients give it: `mcp__palimpsest__recall`."""
    return tool is not None and re.split(r"__|[./:]", tool)[-1] == OWN_TOOL


def _marks(event: Event) -> Iterable[str]:
    """What is known of an event that no query asks for, but that tells how well it answers one. No word is like it."""
    if event.type not in DIALOGUE:
        return
    if _QUESTION.search(event.text[-ENDING_CHARS:]):
        yield ASKING
    named = _SPEAKER.match(event.text)
    yield from speaking(terms(event.author or (named[1] if named else "")))


def speaking(words: Iterable[str]) -> Iterable[str]:
    """The marks of what was said by somebody of whose name these are terms."""
    return (f"said by {word}" for word in words)


def _about(event: Event) -> Iterable[str]:
    """The terms of what is said beside the text: the tool and the author by their names, the day it occurred."""
    for name in (event.tool if event.type is EventType.TOOL_RESULT else None, event.author):
        yield from terms(name or "")
    if event.at:
        day = datetime.fromtimestamp(event.at, UTC)
        yield from terms(f"{_MONTHS.split()[day.month - 1]} {day.year} {day.date().isoformat()}")


def paths(event: Event) -> tuple[str, ...]:
    """The one file that an event is about: its own path, and what a call's arguments name by itself."""
    own = (event.body or {}).get("path")
    alone = (event.arguments.get(name) for name in PATHS) if event.type is EventType.TOOL_CALL else ()
    return tuple(dict.fromkeys(readable(path) for path in (own, *alone) if isinstance(path, str) and path))


def files(event: Event) -> tuple[str, ...]:
    """Every file that an event can be found by: those of `paths` first, then what a call names in a list, what its
    patch or its shell command modifies, and what a result has a diff of. A digest names no other files."""
    found = paths(event)
    if event.type is EventType.TOOL_CALL:
        more = (*named(event.arguments), *files_of(event.tool or "", event.arguments).modified)
        found = tuple(dict.fromkeys((*found, *map(readable, more))))
    elif event.type is EventType.TOOL_RESULT:
        found = tuple(dict.fromkeys((*found, *map(readable, diffed(event.text)))))
    return found


def endings(path: str) -> tuple[str, ...]:
    """A path, and what is left of it without its first folders: what it can be asked for by."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return tuple("/".join(parts[at:]) for at in range(min(len(parts), QUERY_TERMS_MAX)))


def path_term(path: str) -> str:
    """The term of the events that are about a path which is this one or ends in it."""
    return f"path {(endings(path) or (path,))[0]}"


def query_terms(query: str) -> tuple[str, ...]:
    """The distinct terms of a query, at most QUERY_TERMS_MAX."""
    return tuple(islice(dict.fromkeys(terms(query)), QUERY_TERMS_MAX))


def keys(session: bytes, words: Iterable[str]) -> list[int]:
    """Terms of one session as the index holds them: 64 bits each, signed."""
    salt = hashlib.blake2b(session, digest_size=16).digest()
    return [_key(salt, word) for word in words]


@lru_cache(maxsize=65_536)
def _key(salt: bytes, word: str) -> int:
    text = word.encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=salt).digest(), signed=True)


def rank(hits: Sequence[Hit], corpus: Corpus, nearby: Sequence[float] = NEARBY) -> list[Ranked]:
    """The hits and the events near them, the best first; ties to the newer one.

    A near event need not be one that can be found: what is not there is for the caller to leave out.
    """
    weights = [math.log1p(max(0.0, corpus.entries - n + 0.5) / (n + 0.5)) for n in corpus.holding]
    mean = max(1.0, corpus.length / max(1, corpus.entries))
    own = {hit.seq: _score(hit, weights, mean) for hit in hits}
    near = {seq + step * side for seq in own for step in range(1, len(nearby) + 1) for side in (-1, 1)}
    asking = frozenset(hit.seq for hit in hits if hit.asks)
    factors = {hit.seq: (ASKS if hit.asks else 1.0) * (SPEAKS if hit.speaks else 1.0) for hit in hits}
    scores = {seq: _spread(seq, own, nearby, asking) * factors.get(seq, 1.0) for seq in near.union(own) if seq > 0}
    ordered = sorted(scores.items(), key=lambda pair: (-pair[1], -pair[0]))
    return [Ranked(seq, score) for seq, score in ordered if score > 0]


def _score(hit: Hit, weights: Sequence[float], mean: float) -> float:
    damping = K1 * (1 - B + B * hit.length / mean)
    pairs = zip(weights, hit.counts, strict=True)
    return math.fsum(weight * count * (K1 + 1) / (count + damping) for weight, count in pairs if count)


def _spread(seq: int, own: Mapping[int, float], nearby: Sequence[float], asking: Set[int]) -> float:
    near = (
        share
        * max(
            own.get(seq - step, 0.0) * (ANSWERS if step == 1 and seq - step in asking else 1.0),
            own.get(seq + step, 0.0),
        )
        for step, share in enumerate(nearby, start=1)
    )
    return own.get(seq, 0.0) + math.fsum(near)
