"""Full-text search over one session's log: the terms of an event, and BM25 ranking of the hits that the store finds.

The index holds a hash of each term and its session, so one index serves all sessions, a query finds only its own
session's events, and no words are stored. All functions depend on the log only.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from app.core.lexicon.identifiers import is_recall_tool
from app.core.lexicon.times import from_seconds
from app.core.lexicon.words import term_counts, terms
from app.core.log.event import Event, paths
from app.core.log.events import DIALOGUE, EventType, readable
from app.core.memory.digest.files import diffed_paths, files_of, named_paths

K1: Final = 1.0
SHORT: Final = 50
"""BM25's saturation, and the number of terms up to which all events count as equally long. A sentence more in a short
turn does not make it worse evidence, but a long answer holds many words by chance (docs/benchmarks.md)."""
NEARBY: Final = (0.5, 0.3, 0.2, 0.2, 0.1, 0.1)
"""The shares of a term's score that an event gains from events 1, 2, ... seqs away, on the better side: an answer is
found by its question, a result by its call."""
REPEATED: Final = 0.75
"""The factor on that gain for a term that the event itself holds: nearby events mainly add missing terms."""
ANSWERS: Final = 2.0
"""The factor on the gain from the event just before (see NEARBY) if it is a question, which this probably answers."""
AROUND: Final = 0.5
FADING: Final = 0.95
"""An event gains AROUND times the best score near it, its own included, where a score fades by FADING per seq of
distance: events about one subject stand together."""
ASKS: Final = 0.8
SPEAKS: Final = 1.25
"""The factors on an event's score if it is a question, and if the query names its author."""
TERMS_VERSION: Final = 3
"""The version of the rule for terms. An index of another version is rebuilt before it is searched."""
QUERY_TERMS_MAX: Final = 64
EVENT_TERMS_MAX: Final = 20_000
COUNT_MAX: Final = 32_767
ASKS_MARK: Final = "asks a question"
"""The mark of an event that ends with a question."""
ENDING_CHARS: Final = 400

_QUESTION: Final = re.compile(r"\?[\"')\s]{0,5}(?:\[[^\]]{0,300}\]\s{0,5})?$")
_SPEAKER: Final = re.compile(r"(?:\[[^\]\n]{1,80}\] ?)?([A-Z][\w .'-]{0,40}): ")
_MONTHS: Final = "january february march april may june july august september october november december"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The index entry of an event: its terms with their counts, and its length in terms."""

    seq: int
    terms: Mapping[str, int]
    length: int


@dataclass(frozen=True, slots=True)
class Hit:
    """An event that holds at least one term of a query; `counts` are the counts of the query's terms, in its order.

    `asks`: the event is a question. `speaks`: the query names its author.
    """

    seq: int
    length: int
    counts: Sequence[int]
    asks: bool = False
    speaks: bool = False


@dataclass(frozen=True, slots=True)
class Corpus:
    """A session's statistics: the number of indexed events, of their terms, and of the events with each query term."""

    entries: int
    length: int
    holding: Sequence[int]


@dataclass(frozen=True, slots=True)
class Ranked:
    """An event and its score."""

    seq: int
    score: float


def entry(event: Event) -> IndexEntry | None:
    """Return the index entry of an event; None for bookkeeping, the prefix, recalls and redacted events."""
    if not event.rendered or event.body is None or event.body.get("redacted") or is_recall_tool(event.tool):
        return None
    words = term_counts(event.text)
    words.update(_metadata_terms(event))
    length = words.total()
    words.update(f"path {ending}" for path in files(event) for ending in endings(path))
    marks = dict.fromkeys(_marks(event), 1)
    return IndexEntry(event.seq, marks | dict(islice(words.items(), EVENT_TERMS_MAX)), length)


def _marks(event: Event) -> Iterable[str]:
    """Yield the marks of an event, which affect its ranking only: no query term equals a mark."""
    if event.type not in DIALOGUE:
        return
    if _QUESTION.search(event.text[-ENDING_CHARS:]):
        yield ASKS_MARK
    speaker = _SPEAKER.match(event.text)
    yield from author_marks(terms(event.author or (speaker[1] if speaker else "")))


def author_marks(words: Iterable[str]) -> Iterable[str]:
    """Return the marks of events whose author's name consists of these terms."""
    return (f"said by {word}" for word in words)


def _metadata_terms(event: Event) -> Iterable[str]:
    """Yield the terms of an event that are not in its text: the names of its tool and author, and its day."""
    for name in (event.tool if event.type is EventType.TOOL_RESULT else None, event.author):
        yield from terms(name or "")
    if event.at:
        day = from_seconds(event.at)
        yield from terms(f"{_MONTHS.split()[day.month - 1]} {day.year} {day.date().isoformat()}")


def files(event: Event) -> tuple[str, ...]:
    """Return all files by which an event can be found; a digest names no others.

    These are the files of `paths`, then those that a call names in a list or that its patch or shell command modifies,
    or those of the diffs in a result.
    """
    found = paths(event)
    if event.type is EventType.TOOL_CALL:
        more = (*named_paths(event.arguments), *files_of(event.tool or "", event.arguments).modified)
        found = tuple(dict.fromkeys((*found, *map(readable, more))))
    elif event.type is EventType.TOOL_RESULT:
        found = tuple(dict.fromkeys((*found, *map(readable, diffed_paths(event.text)))))
    return found


def endings(path: str) -> tuple[str, ...]:
    """Return the path, and the path without its first folders: the forms in which a query may name it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return tuple("/".join(parts[at:]) for at in range(min(len(parts), QUERY_TERMS_MAX)))


def path_term(path: str) -> str:
    """Return the term of events whose path is this one or ends in it."""
    return f"path {(endings(path) or (path,))[0]}"


def query_terms(query: str) -> tuple[str, ...]:
    """Return the distinct terms of a query, at most QUERY_TERMS_MAX."""
    return tuple(islice(dict.fromkeys(terms(query)), QUERY_TERMS_MAX))


def keys(session: bytes, words: Iterable[str]) -> list[int]:
    """Return the hashes of one session's terms in the index, each a signed integer of 64 bits."""
    salt = hashlib.blake2b(session, digest_size=16).digest()
    return [_key(salt, word) for word in words]


@lru_cache(maxsize=65_536)
def _key(salt: bytes, word: str) -> int:
    hashed = _salted_hash(salt).copy()  # a copy takes half the time of a new hash
    hashed.update(word.encode("utf-8", "replace"))
    return int.from_bytes(hashed.digest(), signed=True)


@lru_cache(maxsize=256)
def _salted_hash(salt: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, key=salt)


def rank(
    hits: Sequence[Hit], corpus: Corpus, nearby: Sequence[float] = NEARBY, current: Collection[int] = ()
) -> list[Ranked]:
    """Rank the events that match and those near them, best first, newer first among equals.

    Events in `current`, which belong to the running turn, come last and give nothing to others. The result may contain
    seqs that are not indexed or do not exist; the caller removes them. Without `nearby`, no event gains from others.
    """
    weights = [math.log1p(max(0.0, corpus.entries - n + 0.5) / (n + 0.5)) for n in corpus.holding]
    mean = max(SHORT, corpus.length / max(1, corpus.entries))
    base = {hit.seq: _scores(hit, weights, mean) for hit in hits}
    own = {seq: math.fsum(base.pop(seq, ())) for seq in current}
    asking = frozenset(hit.seq for hit in hits if hit.asks)
    factors = {hit.seq: (ASKS if hit.asks else 1.0) * (SPEAKS if hit.speaks else 1.0) for hit in hits}
    scores = dict.fromkeys(own, 0.0)
    for term in zip(*base.values(), strict=True):
        holding = {seq: score for seq, score in zip(base, term, strict=True) if score}
        for seq, score in _spread(holding, nearby, asking):
            scores[seq] = scores.get(seq, 0.0) + score
    around = _best_around({seq: math.fsum(terms) for seq, terms in base.items()}, scores) if nearby else {}
    scores = {
        seq: (score + AROUND * around.get(seq, 0.0)) * factors.get(seq, 1.0) + own.get(seq, 0.0)
        for seq, score in scores.items()
        if score or seq in own
    }
    ordered = sorted(scores.items(), key=lambda pair: (pair[0] in own, -pair[1], -pair[0]))
    return [Ranked(seq, score) for seq, score in ordered if score > 0]


def _scores(hit: Hit, weights: Sequence[float], mean: float) -> list[float]:
    """Return a hit's score for each term of the query, by BM25 with complete normalization of its length."""
    damping = K1 * max(hit.length, SHORT) / mean
    pairs = zip(weights, hit.counts, strict=True)
    return [weight * count * (K1 + 1) / (count + damping) for weight, count in pairs]


def _spread(held: Mapping[int, float], nearby: Sequence[float], asking: Set[int]) -> Iterator[tuple[int, float]]:
    """Yield one term's score for each event that holds it (`held`) or is near one that does."""
    get = held.get
    steps = range(1, len(nearby) + 1)
    for seq in {seq + step * side for seq in held for step in steps for side in (-1, 1)}.union(held):
        if seq > 0:
            gain = 0.0
            for step, share in enumerate(nearby, start=1):
                before, after = get(seq - step, 0.0), get(seq + step, 0.0)
                if before and step == 1 and seq - 1 in asking:
                    before *= ANSWERS
                gain += share * (before if before > after else after)
            score = get(seq)
            yield seq, gain if score is None else score + REPEATED * gain


def _best_around(scores: Mapping[int, float], seqs: Iterable[int]) -> dict[int, float]:
    """Return the best faded score around each seq."""
    best: dict[int, float] = {}
    ordered = sorted({*scores, *seqs})
    for direction in (ordered, ordered[::-1]):
        carried, at = 0.0, 0
        for seq in direction:
            carried = max(scores.get(seq, 0.0), carried * FADING ** abs(seq - at))
            best[seq], at = max(carried, best.get(seq, 0.0)), seq
    return best
