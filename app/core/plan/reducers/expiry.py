"""Expiry of single events, at their author's limit or when a newer event supersedes them.

Unlike an eviction it need not pay: an expired event is never shown again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.reducers.visibility import show_as_stub
from app.core.plan.state.context import Context, Reduced, Unit
from app.core.plan.state.drops import EXPIRY, drop_units
from app.core.plan.state.frontier import Frontier, Stub
from app.core.plan.state.items import Item
from app.core.plan.state.stubs import apply_stubs, replaced_by
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter

REDUCER: Final = EXPIRY
EXPIRED_RESULT: Final = "[This result has expired. Recall it with seq {seq}.]"


@dataclass(frozen=True, slots=True)
class ExpiryReducer:
    """Takes expired events out. `now` is in Unix seconds; if it is None, nothing expires by time."""

    now: float | None

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Show the `replacement` of each expired event. Without one, stub a tool result and drop anything else.

        Protected events (I9) do not expire, and a call stays as long as its result is shown, whole or as a stub. The
        assistant's words before a call may be removed alone, except in a round that shows a model's reasoning.
        """
        due = dict(self._due(context))
        if not due:
            return Reduced(context, state)
        stubs, dropped = _without(context, due, context.protected)
        done = apply_stubs(context, state, stubs)
        for reason in sorted({due[unit.items[0].event.seq] for unit in dropped}):
            leaving = [unit for unit in dropped if due[unit.items[0].event.seq] == reason]
            done = drop_units(done.context, done.state, leaving, REDUCER, reason, noted=False)
        return done

    def _due(self, context: Context) -> Iterator[tuple[int, str]]:
        """Yield the seqs that have expired since the last plan, each with its reason."""
        newest = _newest(context.perishable)
        # An event needs no expiry of its own to be superseded, by its id or path.
        for item in context.items if newest else context.perishable:
            if item.stub is not None and item.stub.reducer == REDUCER:
                continue
            reason = _reason(item.event, context.turn, self.now) or _superseded(item.event, newest)
            if reason is not None:
                yield item.event.seq, reason


def without_expiring(context: Context) -> Context:
    """Return a context as a summarizer may read it: events that expire by age show only their replacement.

    A summary of the original would keep it for longer than its author wants.
    """
    expiring = {i.event.seq: "ttl" for i in context.perishable if i.event.expires_by_age}
    if not expiring:
        return context
    stubs, dropped = _without(context, expiring, frozenset())
    shorter = {stub.seq: stub for stub in stubs}
    left = {item.event.seq for unit in dropped for item in unit.all_items}
    shown = (show_as_stub(item, shorter.get(item.event.seq)) for item in context.items if item.event.seq not in left)
    return replace(context, items=tuple(item for item in shown if item is not None))


def _without(context: Context, due: Mapping[int, str], stays: Collection[int]) -> tuple[list[Stub], list[Unit]]:
    """Return the stubs of the `due` events (seq to reason) that are not in `stays`, and the units to drop entirely."""
    stubs: list[Stub] = []
    dropped: list[Unit] = []
    for unit in context.units:
        expired = [i for i in unit.all_items if i.event.seq in due and i.event.seq not in stays]
        if len(expired) == len(unit.all_items) and not any(_replacement(i.event) for i in expired):
            dropped.append(unit)
        else:
            has_reasoning = any(item.has_reasoning for item in unit.items)
            for item in expired:
                stub = _stub(item, context.counter, due[item.event.seq], may_hide=not has_reasoning)
                stubs += [stub] if stub is not None else []
    return stubs, dropped


def _reason(event: Event, turn: int, now: float | None) -> str | None:
    body = event.body or {}
    turns, seconds = body.get("ttl_turns"), body.get("ttl_seconds")
    if isinstance(turns, int) and turn - event.turn >= max(1, turns):
        return "ttl_turns"
    if isinstance(seconds, int) and now is not None and now - event.at >= seconds:
        return "ttl_seconds"
    return None


def _newest(perishable: Sequence[Item]) -> dict[str, int]:
    """Return the last seq that supersedes each key."""
    return {key: i.event.seq for i in perishable if isinstance(key := (i.event.body or {}).get("supersedes"), str)}


def _superseded(event: Event, newest: dict[str, int]) -> str | None:
    body = event.body or {}
    names = (body.get("supersedes"), body.get("id"), body.get("path"))
    return "superseded" if any(isinstance(n, str) and newest.get(n, 0) > event.seq for n in names) else None


def _replacement(event: Event) -> str | None:
    """Return the author's text to show instead of an event; None without one, and for a tool call."""
    if event.type is EventType.TOOL_CALL:
        return None
    given = (event.body or {}).get("replacement")
    return given if isinstance(given, str) and given.strip() else None


def _stub(item: Item, counter: Counter, reason: str, *, may_hide: bool) -> Stub | None:
    """Return the stub of an expired event, None if it stays; if `may_hide`, an assistant message may be hidden."""
    event = item.event
    text = _replacement(event)
    if text is None:
        if event.type is EventType.ASSISTANT_MESSAGE and may_hide:
            return Stub(event.seq, 0, 0, event.tokens, REDUCER, reason)
        if event.type is not EventType.TOOL_RESULT:
            return None
        text = EXPIRED_RESULT.format(seq=event.seq)
    return replaced_by(event, text, counter, REDUCER, reason)
