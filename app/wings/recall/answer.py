"""The response to a recall: the events to return, and the part of each, within a token budget."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.core.lexicon.words import terms
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.policy.groups import SHOW_ALL, ViewFilter
from app.core.record.evictions import dispositions
from app.core.tokens.counter import Counter, TextKind
from app.wings.recall.search import query_terms

LIMIT = 10
LIMIT_MAX = 100
SHORT_LIMIT = 50
SHORT_TOKENS = 150
SHORT_SCORE = 0.25
SHORT_SHARE = 0.75
"""Without a limit, a search returns LIMIT originals, and up to SHORT_LIMIT if the further ones are short: at most
SHORT_TOKENS, with at least SHORT_SCORE of the best score, all within SHORT_SHARE of the budget. A question that needs
several events seldom has all of them in ten."""
TOKENS = 4_000
TOKENS_MIN = 100
TOKENS_MAX = 200_000
SEQS_MAX = 100
PATHS_MAX = 20
QUERY_CHARS_MAX = 2_000
SHARE_MIN = 150
"""If each original would get fewer tokens than this, fewer originals are returned."""
SNIPPET_CHARS_MAX = 160
LEAD_CHARS = 200
"""Characters shown before the matching position of a cut event."""
_CHARS_PER_TOKEN_MAX = 16


@dataclass(frozen=True, slots=True)
class SeenCall:
    """The head of a recorded call, the frontier of its epoch, and the filter of its policy."""

    head: int = 0
    frontier: Frontier = START
    shows: ViewFilter = SHOW_ALL


def verbatim_seqs(events: Sequence[Event], seen: SeenCall, counter: Counter) -> frozenset[int]:
    """Return the seqs of the events that the call showed verbatim. A result's call must be among the events."""
    before = [event for event in events if event.seq <= seen.head]
    context = project(before, seen.frontier, counter, turn=0, shows=seen.shows)
    disposition_of = dispositions(before, context, seen.frontier)
    return frozenset(seq for seq, disposition in disposition_of.items() if disposition == "verbatim")


def pick(seqs: Iterable[int], verbatim: Collection[int], limit: int) -> list[int]:
    """Return the first `limit` seqs that are not verbatim, then at most `limit` of the verbatim ones before the last of
    them, or of all verbatim ones if they are fewer."""
    picked: list[int] = []
    room = {True: limit, False: limit}
    for seq in seqs:
        if not room[False]:
            break
        if room[seq in verbatim]:
            room[seq in verbatim] -= 1
            picked.append(seq)
    return sorted(picked, key=lambda seq: seq in verbatim)


def short_ones(
    ranked: Iterable[int], scores: Mapping[int, float], sizes: Mapping[int, int], taken: Collection[int], room: int
) -> list[int]:
    """Return the seqs of short events beyond LIMIT, for a search without an explicit limit.

    `taken` are the seqs already chosen; their sizes count if they are in `sizes`, which has no verbatim events.
    """
    floor = SHORT_SCORE * max(scores.values(), default=0.0)
    left = int(SHORT_SHARE * room) - sum(sizes.get(seq, 0) for seq in taken)
    found: list[int] = []
    for seq in ranked:
        size = sizes.get(seq)
        if len(found) == SHORT_LIMIT - LIMIT or scores[seq] < floor:
            break
        if size is not None and seq not in taken and size <= min(left, SHORT_TOKENS):
            left -= size
            found.append(seq)
    return found


def portions(costs: Sequence[int], room: int) -> list[int]:
    """Return the tokens of `room` that each of the first events gets; the events after these get none.

    Each gets its cost, up to one level for all. The level is at least SHARE_MIN unless all fit or one event is left.
    """
    count = len(costs)
    while count > 1 and _level(costs[:count], room) < min(SHARE_MIN, max(costs[:count])):
        count -= 1
    level = _level(costs[:count], room)
    return [min(cost, level) for cost in costs[:count]]


def _level(costs: Sequence[int], room: int) -> int:
    """Return the highest level such that the costs, each capped at it, fit the room."""
    left = room
    for done, cost in enumerate(sorted(costs)):
        share = left // (len(costs) - done)
        if cost > share:
            return max(0, share)
        left -= cost
    return max(costs, default=0)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a text, from character `start` up to `end`."""

    text: str
    start: int
    end: int


Count = Callable[[str], int]


def excerpt(text: str, start: int, tokens: int, count: Count) -> Excerpt:
    """Return the text from `start`, as far as `tokens` allow, cut at a line break if that loses at most a quarter."""
    low, high = 0, min(len(text) - start, tokens * _CHARS_PER_TOKEN_MAX)
    while low < high:
        length = (low + high + 1) // 2
        if count(text[start : start + length]) <= tokens:
            low = length
        else:
            high = length - 1
    end = start + low
    if end < len(text):
        line = text.rfind("\n", start + low * 3 // 4, end)
        end = line + 1 if line >= 0 else end
    while end > start and count(text[start:end]) > tokens:
        end -= 1  # a shorter text may have one token more
    return Excerpt(text[start:end], start, end)


def best_position(text: str, weights: Mapping[str, float]) -> int:
    """Return the position of the part of a line with the greatest weight of terms; the first of several."""
    best, place, at = 0.0, 0, 0
    for line in text.splitlines(keepends=True):
        for begin in range(0, len(line), SNIPPET_CHARS_MAX):
            piece = line[begin : begin + SNIPPET_CHARS_MAX]
            weight = sum(weights[term] for term in weights.keys() & set(terms(piece)))
            if weight > best:
                best, place = weight, at + begin
        at += len(line)
    return place


def snippet(text: str, place: int) -> str:
    """Return the text at a position, on one line, shortened."""
    words = " ".join(text[place : place + SNIPPET_CHARS_MAX].split())
    return words + "…" if place + SNIPPET_CHARS_MAX < len(text) else words


def weights_of(query: str | None, holding: Sequence[int]) -> Mapping[str, float]:
    """Return the terms of a query with weights by rarity; `holding` has the number of events with each term."""
    if not query:
        return {}
    found = query_terms(query)
    return {term: 1 / (1 + n) for term, n in zip(found, holding, strict=True)}


def kind_of(event: Event) -> TextKind:
    """Return the kind of text as which an event's tokens are counted."""
    if event.type is EventType.TOOL_RESULT:
        return TextKind.RESULT
    return TextKind.DATA if event.type is EventType.TOOL_CALL else TextKind.PROSE


@dataclass(frozen=True, slots=True)
class RecallPart:
    """An event in the response; if it is visible, `content` is None and `snippet` may quote it.

    The content begins at character `start` and ends at `end`, None for the end of the text.
    """

    event: Event
    visible: bool
    content: str | None = None
    start: int = 0
    end: int | None = None
    snippet: str | None = None


@dataclass(frozen=True, slots=True)
class RecallAnswer:
    """The events in the response, the tokens they take, and the number of events left out for lack of tokens."""

    given: tuple[RecallPart, ...]
    tokens: int
    left_out: int


def fill(
    events: Sequence[Event],
    without_content: Collection[int],
    weights: Mapping[str, float],
    room: int,
    counter: Counter,
    start: int = 0,
) -> RecallAnswer:
    """Return the events in order within `room` tokens: those in `without_content` at most quoted, long ones cut.

    A cut event is shown from `start`; if that is 0 and the best match is after it, from LEAD_CHARS before the match.
    """
    spent = 0
    hints: dict[int, str] = {}
    places = {e.seq: best_position(e.text, weights) for e in events} if weights else {}
    for event in events:
        if event.seq in without_content and weights:
            hint = snippet(event.text, places[event.seq])
            cost = counter.estimator.count(hint, TextKind.PROSE)
            if spent + cost <= room // 4:
                hints[event.seq] = hint
                spent += cost
    others = [event for event in events if event.seq not in without_content]
    costs = [counter.estimator.count(event.text[start:], kind_of(event)) for event in others]
    allotments = portions(costs, room - spent)
    given: dict[int, RecallPart] = {}
    for event, cost, allotment in zip(others, costs, allotments, strict=False):
        part = _cut(event, start, cost, allotment, places.get(event.seq, 0), counter)
        given[event.seq] = part
        spent += counter.estimator.count(part.content or "", kind_of(event))
    given |= {e.seq: RecallPart(e, True, snippet=hints.get(e.seq)) for e in events if e.seq in without_content}
    return RecallAnswer(tuple(given[e.seq] for e in events if e.seq in given), spent, len(others) - len(allotments))


def _cut(event: Event, start: int, cost: int, allotment: int, match_at: int, counter: Counter) -> RecallPart:
    text = event.text
    if cost <= allotment:
        return RecallPart(event, False, text[start:], start)
    kind = kind_of(event)

    def count(piece: str) -> int:
        return counter.estimator.count(piece, kind)

    part = excerpt(text, start, allotment, count)
    if not start and match_at >= part.end:
        part = excerpt(text, max(0, match_at - LEAD_CHARS), allotment, count)
    end = part.end if part.end < len(text) else None
    return RecallPart(event, False, part.text, part.start, end)
