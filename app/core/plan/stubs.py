"""Showing tool results as stubs or shortened: shared by the reducers that do."""

from collections.abc import Iterable
from dataclasses import replace

from app.core import wording
from app.core.log import Event
from app.core.plan.context import Context, Item, Reduced
from app.core.plan.frontier import Frontier, Stub
from app.core.tokens import Counter


def stub_for(event: Event, counter: Counter, reducer: str, reason: str) -> Stub | None:
    """The stub of a tool result; None when it would take no less than the result itself."""
    tokens = counter.result(wording.stub(event))
    if tokens >= event.tokens:
        return None
    return Stub(event.seq, 0, tokens, event.tokens - tokens, reducer, reason)


def shortened_for(event: Event, chars: int, counter: Counter, reducer: str, reason: str) -> Stub | None:
    """The result cut to its first and last `chars` characters; None when that would take no less."""
    if event.body is None:
        return None
    text = wording.content_text(event.body.get("content"))
    if len(text) <= 2 * chars:
        return None
    tokens = counter.result(wording.shortened(text, chars, event.seq))
    if tokens >= event.tokens:
        return None
    return Stub(event.seq, chars, tokens, event.tokens - tokens, reducer, reason)


def apply_stubs(context: Context, state: Frontier, stubs: Iterable[Stub]) -> Reduced:
    """The context and state with these stubs, in place of earlier ones of the same results."""
    new: dict[int, Stub] = {stub.seq: stub for stub in stubs}
    if not new:
        return Reduced(context, state)
    items = tuple(
        Item(item.event, new[item.event.seq].tokens, new[item.event.seq]) if item.event.seq in new else item
        for item in context.items
    )
    kept = {stub.seq: stub for stub in state.stubs} | new
    return Reduced(replace(context, items=items), replace(state, stubs=tuple(kept[seq] for seq in sorted(kept))))
