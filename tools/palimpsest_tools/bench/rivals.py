"""Requests that a client would send under other rules than ours: everything, or without the oldest results."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import REQUEST_TOKENS
from app.core.tokens.models import CacheProfile
from palimpsest_tools.bench.sessions import LoggedSession

STUB_TOKENS: Final = 45
"""Tokens of a plain stub."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One event as it is sent. `version` changes with its bytes; `text` is the text left of it, None for all."""

    seq: int
    tokens: int
    version: str = ""
    text: str | None = None
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. `cause` is None without a new decision; `marks` is None for a careful client's markers.

    `before` are the requests that the client sent first to have a summary of `written` tokens each. Requests with the
    same `opening` have the same system prompt and tools.
    """

    shown: tuple[Shown, ...]
    prefix_tokens: int
    at: float
    cause: str | None = None
    marks: tuple[int, ...] | None = None
    once_from: int = 0
    before: tuple["Sent", ...] = ()
    written: int = 0
    opening: str = "prefix"


Player: TypeAlias = Callable[[LoggedSession, CacheProfile], Iterator[Sent]]


def append_only(session: LoggedSession, _: CacheProfile) -> Iterator[Sent]:
    """Send everything, as if the window had no end."""
    yield from masked(session, lambda results, gone, tokens: gone)


def mask_every_turn(keep: int) -> Player:
    """Return a player that stubs all results but the newest `keep` at every call."""

    def play(session: LoggedSession, _: CacheProfile) -> Iterator[Sent]:
        yield from masked(session, lambda results, gone, tokens: {event.seq for event in results[:-keep]})

    return play


def clear_above(threshold: int, keep: int, least: int) -> Player:
    """Return a player that clears all but the newest `keep` results above a threshold, if that saves `least` tokens."""

    def play(session: LoggedSession, _: CacheProfile) -> Iterator[Sent]:
        def decide(results: Sequence[Event], gone: set[int], tokens: int) -> set[int]:
            if tokens + session.prefix_tokens <= threshold:
                return gone
            more = [event for event in results[:-keep] if event.seq not in gone]
            saves = sum(max(0, event.tokens - STUB_TOKENS) for event in more)
            return gone | {event.seq for event in more} if saves >= least else gone

        yield from masked(session, decide)

    return play


def conversation(session: LoggedSession) -> tuple[list[Event], list[Shown], int]:
    """Return the events of the conversation, each as it is sent whole, and the tokens that precede them."""
    events = [event for event in session.events if event.rendered]
    fixed = sum(event.tokens for event in session.events if event.type in (EventType.SYSTEM_PROMPT, EventType.TOOLS))
    whole = [Shown(e.seq, e.tokens, joins=e.type is EventType.TOOL_CALL) for e in events]
    return events, whole, session.prefix_tokens + fixed + REQUEST_TOKENS


def masked(session: LoggedSession, decide: Callable[[Sequence[Event], set[int], int], set[int]]) -> Iterator[Sent]:
    """Send plain stubs for the events that `decide` returns; results smaller than a stub stay."""
    events, whole, prefix = conversation(session)
    seqs = [event.seq for event in events]
    stubs = {one.seq: replace(one, tokens=STUB_TOKENS, version="stub", text="") for one in whole}
    gone: set[int] = set()
    for call in session.calls:
        count = bisect_right(seqs, call.events)
        results = [event for event in events[:count] if event.type is EventType.TOOL_RESULT]
        tokens = sum(stubs[s.seq].tokens if s.seq in gone else s.tokens for s in whole[:count])
        now = {seq for seq in decide(results, gone, tokens) if session.events[seq - 1].tokens > STUB_TOKENS}
        cause = "evicted" if now != gone else None
        gone = now
        shown = tuple(stubs[one.seq] if one.seq in gone else one for one in whole[:count])
        yield Sent(shown, prefix, call.at, cause)
