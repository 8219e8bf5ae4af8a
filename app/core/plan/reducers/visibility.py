"""Decisions to hide events or to show them again, which hold in every view; the log keeps everything."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier, Stub
from app.core.plan.state.items import Item
from app.core.plan.state.stubs import VISIBILITY, apply_stubs, replaced_by
from app.core.tokens.budget import ROOM_SHARE, Budget

REDUCER: Final = VISIBILITY
REASON: Final = "hidden"
HIDDEN: Final = "[Hidden. Recall it with seq {seq}.]"
"""The line in place of a hidden event that cannot be left out and has no replacement."""


@dataclass(frozen=True, slots=True)
class NewestDecision:
    """The newest decision about the event `seq`: hidden, or to be shown again. `number` counts a session's decisions.

    `replacement` is shown in place of a hidden event; without one the event is left out, where that is legal. `path` is
    the first path that a hidden event is about, however it was named; None if it is about none, or shown again.
    """

    seq: int
    number: int
    hidden: bool
    replacement: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class VisibilityReducer:
    """Applies `decided`, the newest decision about each event that is read."""

    decided: tuple[NewestDecision, ...]

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Show a hidden event's replacement or nothing; show an event that is no longer hidden as it was logged.

        Evicted events come back, the newest first, as far as the trigger leaves room, if they are pinned or a decision
        since the state last changed shows them again. They then stay until the budget forces them out.
        """
        shown_again = frozenset(decision.seq for decision in self.decided if not decision.hidden)
        if context.shown_again != shown_again:
            context = replace(context, shown_again=shown_again)
        hidden = hidden_stubs(context, self.decided)
        back = [i for i in context.items if _is_hidden(i) and i.event.seq not in hidden]
        new_seqs = {d.seq for d in self.decided if not d.hidden and d.number > state.decisions}
        room = budget.trigger - context.tokens
        for item in reversed(context.items):
            wanted = item.event.pinned or item.event.seq in new_seqs
            if wanted and item.stub is not None and not _is_hidden(item) and item.event.body is not None:
                room -= item.event.tokens - item.tokens
                if room < 0:
                    break
                back.append(item)
        done = remove_stubs(context, state, {item.event.seq for item in back})
        current = {stub.seq: stub for stub in done.state.stubs}
        return apply_stubs(done.context, done.state, [s for s in hidden.values() if current.get(s.seq) != s])


@dataclass(frozen=True, slots=True)
class PinnedReducer:
    """Shows events whole again that were evicted before they were pinned, as soon as the trigger leaves room."""

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Bring pinned events back, the newest first; one that is too large does not stop older, smaller ones.

        The share ROOM_SHARE of the trigger stays free: a reduction that leaves less may be refused (`stall_reason`).
        """
        room = int(budget.trigger * (1 - ROOM_SHARE)) - context.tokens
        back: set[int] = set()
        for item in reversed(context.items):
            more = item.event.tokens - item.tokens
            if is_pinned_stub(item) and item.event.body is not None and more <= room:
                room -= more
                back.add(item.event.seq)
        return remove_stubs(context, state, back)


def is_pinned_stub(item: Item) -> bool:
    """Return whether a pinned event is shown as a stub although no decision hid it."""
    return item.event.pinned and item.stub is not None and not _is_hidden(item)


def hidden_stubs(context: Context, decided: Iterable[NewestDecision]) -> Mapping[int, Stub]:
    """Return the stubs of hidden events, by seq, without those that may not be hidden.

    A hidden result without a replacement is left out together with its call if that is hidden too; else a line is shown
    for it and the call stays. A round that shows a model's reasoning loses nothing: a line is shown instead.
    """
    hidden = {decision.seq: decision for decision in decided if decision.hidden}
    if not hidden:
        return {}
    hideable = [i for i in context.items if i.event.seq in hidden and not may_not_be_hidden(i.event, context)]
    fixed = fixed_seqs(context)
    calls = {i.event.seq: i.event for i in hideable if i.event.type is EventType.TOOL_CALL and i.event.seq not in fixed}
    stubs: dict[int, Stub] = {}
    for item in hideable:
        event, words = item.event, hidden[item.event.seq].replacement
        if event.type is EventType.TOOL_CALL:
            continue
        call = calls.get(event.call_seq or 0)
        must_say = event.seq in fixed or (event.type is EventType.TOOL_RESULT and call is None)
        if not words and must_say:
            words = HIDDEN.format(seq=event.seq)
        if words:
            stubs[event.seq] = replaced_by(event, words, context.counter, REDUCER, REASON)
        else:
            stubs |= {gone.seq: Stub(gone.seq, 0, 0, gone.tokens, REDUCER, REASON) for gone in (event, call) if gone}
    return stubs


def may_not_be_hidden(event: Event, context: Context) -> bool:
    """Return whether an event may never be hidden: it is pinned, the running turn's message, an open call, or holds
    reasoning. (`Context.protected` is about dropping.)"""
    is_request = event.type is EventType.USER_MESSAGE and event.turn == context.turn
    return event.pinned or is_request or event.has_reasoning or event.seq in context.open_calls


def fixed_seqs(context: Context) -> frozenset[int]:
    """Return the seqs of rounds that show a model's reasoning: providers want it back with all that followed it."""
    rounds = (unit.all_items for unit in context.units if any(item.has_reasoning for item in unit.items))
    return frozenset(item.event.seq for items in rounds for item in items)


def remove_stubs(context: Context, state: Frontier, seqs: Collection[int]) -> Reduced:
    """Remove the stubs of these events from the context and state, so that they are shown verbatim."""
    if not seqs:
        return Reduced(context, state)
    items = tuple(Item(i.event, i.event.tokens) if i.event.seq in seqs else i for i in context.items)
    stubs = tuple(stub for stub in state.stubs if stub.seq not in seqs)
    return Reduced(replace(context, items=items), replace(state, stubs=stubs))


def without_hidden(context: Context, decided: Iterable[NewestDecision]) -> Context:
    """Return a context as a summarizer may read it: hidden events show only their replacement."""
    stubs = hidden_stubs(context, decided)
    if not stubs:
        return context
    shown = (show_as_stub(item, stubs.get(item.event.seq)) for item in context.items)
    return replace(context, items=tuple(item for item in shown if item is not None))


def show_as_stub(item: Item, stub: Stub | None) -> Item | None:
    """Return an item as a summarizer may read it: with its stub's text as content, None if the stub shows nothing."""
    if stub is None:
        return item
    if not stub.tokens:
        return None
    body = {**(item.event.body or {}), "content": stub.text}
    body.pop("native", None)
    return Item(replace(item.event, tokens=stub.tokens, gist=None, body=body), stub.tokens)


def _is_hidden(item: Item) -> bool:
    return item.stub is not None and item.stub.reducer == REDUCER
