"""What a recall answers: which of the events found are given back, and how much of each, within a bound of tokens."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.core.audit.evictions import dispositions
from app.core.lexicon.words import terms
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.context.context import project
from app.core.plan.context.frontier import START, Frontier
from app.core.policy.shows import EVERYTHING, ViewFilter
from app.core.recall.search import query_terms
from app.core.tokens.counter import Counter, TextKind

LIMIT = 10
LIMIT_MAX = 100
TOKENS = 4_000
TOKENS_MIN = 100
TOKENS_MAX = 200_000
SEQS_MAX = 100
PATHS_MAX = 20
QUERY_CHARS_MAX = 2_000
SHARE_MIN = 150
"""Fewer originals are given rather than less of each than this, in tokens."""
SNIPPET_CHARS_MAX = 160
LEAD_CHARS = 200
"""What is shown in front of the place that a cut event is shown for."""
_CHARS_PER_TOKEN_MAX = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """What a recorded call was made of: its head and its epoch's frontier, and what its policy shows."""

    head: int = 0
    frontier: Frontier = START
    shows: ViewFilter = EVERYTHING


def visible(events: Sequence[Event], seen: Seen, counter: Counter) -> frozenset[int]:
    """The seqs of those events that the call showed verbatim. A result's call must be among the events."""
    before = [event for event in events if event.seq <= seen.head]
    context = project(before, seen.frontier, counter, turn=0, shows=seen.shows)
    words = dispositions(before, context, seen.frontier)
    return frozenset(seq for seq, word in words.items() if word == "verbatim")


def pick(seqs: Iterable[int], shown: Collection[int], limit: int) -> list[int]:
    """The first `limit` of those that are not shown, and the shown ones before them, at most `limit` likewise."""
    picked: list[int] = []
    room = {True: limit, False: limit}
    for seq in seqs:
        if not room[False]:
            break
        if room[seq in shown]:
            room[seq in shown] -= 1
            picked.append(seq)
    return picked


def portions(costs: Sequence[int], room: int) -> list[int]:
    """How many tokens each of the first events gets of `room`; those behind the last one get nothing.

    All get what they take up to one common level, none of them less than SHARE_MIN unless it takes less, but the first.
    """
    count = len(costs)
    while count > 1 and _level(costs[:count], room) < min(SHARE_MIN, max(costs[:count])):
        count -= 1
    level = _level(costs[:count], room)
    return [min(cost, level) for cost in costs[:count]]


def _level(costs: Sequence[int], room: int) -> int:
    """The highest level at which what is below it fits."""
    left = room
    for done, cost in enumerate(sorted(costs)):
        share = left // (len(costs) - done)
        if cost > share:
            return max(0, share)
        left -= cost
    return max(costs, default=0)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a text: from `start` up to `end`, in characters."""

    text: str
    start: int
    end: int


Count = Callable[[str], int]


def excerpt(text: str, start: int, tokens: int, count: Count) -> Excerpt:
    """As much of a text from `start` on as `tokens` allow; it ends with a line where that costs little."""
    low, high = 0, min(len(text) - start, tokens * _CHARS_PER_TOKEN_MAX)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[start : start + middle]) <= tokens:
            low = middle
        else:
            high = middle - 1
    end = start + low
    if end < len(text):
        line = text.rfind("\n", start + low * 3 // 4, end)
        end = line + 1 if line >= 0 else end
    while end > start and count(text[start:end]) > tokens:
        end -= 1  # a shorter text may take a token more
    return Excerpt(text[start:end], start, end)


def matching(text: str, weights: Mapping[str, float]) -> int:
    """Where the line of a text begins that holds most of the terms, by weight; the first of equal ones."""
    best, place, at = 0.0, 0, 0
    for line in text.splitlines(keepends=True):
        for begin in range(0, len(line), SNIPPET_CHARS_MAX):
            piece = line[begin : begin + SNIPPET_CHARS_MAX]
            worth = sum(weights[term] for term in weights.keys() & set(terms(piece)))
            if worth > best:
                best, place = worth, at + begin
        at += len(line)
    return place


def snippet(text: str, place: int) -> str:
    """What stands at a place of a text, on one line."""
    words = " ".join(text[place : place + SNIPPET_CHARS_MAX].split())
    return words + "…" if place + SNIPPET_CHARS_MAX < len(text) else words


def weights_of(query: str | None, holding: Sequence[int]) -> Mapping[str, float]:
    """The terms of a query, each by how rare it is among the events it was looked up in."""
    if not query:
        return {}
    found = query_terms(query)
    return {term: 1 / (1 + n) for term, n in zip(found, holding, strict=True)}


def kind_of(event: Event) -> TextKind:
    """What an event's text is counted as."""
    if event.type is EventType.TOOL_RESULT:
        return TextKind.RESULT
    return TextKind.DATA if event.type is EventType.TOOL_CALL else TextKind.PROSE


@dataclass(frozen=True, slots=True)
class Given:
    """An event as it is given back. `content` is None for one that is visible, or that is behind the bound.

    `end` is None where the content goes to the end of the text.
    """

    event: Event
    visible: bool
    content: str | None = None
    start: int = 0
    end: int | None = None
    snippet: str | None = None


@dataclass(frozen=True, slots=True)
class Bounded:
    """What is given back, the tokens it takes, and how many events had no room."""

    given: tuple[Given, ...]
    tokens: int
    left_out: int


def give(
    events: Sequence[Event],
    shown: Collection[int],
    weights: Mapping[str, float],
    room: int,
    counter: Counter,
    start: int = 0,
) -> Bounded:
    """The events in their order within `room` tokens: visible ones without content, long ones cut.

    A cut event is shown from `start` on, or from where it says most about what was asked.
    """
    spent = 0
    hints: dict[int, str] = {}
    places = {e.seq: matching(e.text, weights) for e in events} if weights else {}
    for event in events:
        if event.seq in shown and weights:
            hint = snippet(event.text, places[event.seq])
            cost = counter.estimator.count(hint, TextKind.PROSE)
            if spent + cost <= room // 4:
                hints[event.seq] = hint
                spent += cost
    bare = [event for event in events if event.seq not in shown]
    costs = [counter.estimator.count(event.text[start:], kind_of(event)) for event in bare]
    allotted = portions(costs, room - spent)
    given: dict[int, Given] = {}
    for event, cost, most in zip(bare, costs, allotted, strict=False):
        one = _cut(event, start, cost, most, places.get(event.seq, 0), counter)
        given[event.seq] = one
        spent += counter.estimator.count(one.content or "", kind_of(event))
    given |= {e.seq: Given(e, True, snippet=hints.get(e.seq)) for e in events if e.seq in shown}
    return Bounded(tuple(given[e.seq] for e in events if e.seq in given), spent, len(bare) - len(allotted))


def _cut(event: Event, start: int, cost: int, most: int, place: int, counter: Counter) -> Given:
    text = event.text
    if cost <= most:
        return Given(event, False, text[start:], start)
    kind = kind_of(event)

    def count(piece: str) -> int:
        return counter.estimator.count(piece, kind)

    part = excerpt(text, start, most, count)
    if not start and place >= part.end:
        part = excerpt(text, max(0, place - LEAD_CHARS), most, count)
    end = part.end if part.end < len(text) else None
    return Given(event, False, part.text, part.start, end)
