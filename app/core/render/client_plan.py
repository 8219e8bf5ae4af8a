"""The plan for a client's own messages: which to keep, replace or drop, and what to insert between them.

A client that holds its conversation as objects of its own keeps those that are shown verbatim. Applied to its messages,
the plan yields the content of the rendered request.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.log.event import ERASED_TOKENS, Block, Kind, content_text
from app.core.plan.state.context import Context, Unit
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.wording import PENDING, RESUMED
from app.core.render.layers import Content

Action = Literal["keep", "replace", "drop"]


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The plan for one event of a message. `text` replaces its content, for a tool call the JSON of its arguments."""

    seq: int
    call_id: str | None
    action: Action
    text: str | None = None


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """The plan for one message. `parts` is set if it has several events that are neither all kept nor all dropped."""

    index: int
    action: Action
    seqs: tuple[int, ...]
    text: str | None = None
    parts: tuple[PartPlan, ...] | None = None


@dataclass(frozen=True, slots=True)
class Inserted:
    """A message to insert before the client's message `before`, or at the end if there is no such message."""

    before: int
    kind: Literal["summary", "note", "layer", "injection", "pending"]
    role: Literal["system", "user", "tool"]
    text: str
    id: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The plans for a client's messages, in their order, and the messages to insert, by position."""

    messages: tuple[MessagePlan, ...]
    inserted: tuple[Inserted, ...]


def client_plan(
    seqs: Sequence[Sequence[int]],
    context: Context,
    state: Frontier,
    tail: Sequence[tuple[Literal["layer", "injection", "note"], str | None, Content]] = (),
) -> ClientPlan:
    """Return the plan for messages whose events are at `seqs`, message by message.

    `tail` is the content shown after the conversation: its kind, its name and its content.
    """
    shown = {item.event.seq: item for unit in context.units for item in unit.all_items if item.shown}
    reworded = _reworded(context.units)
    front = {event.seq for event in context.prefix}
    verbatim = front.union(shown.keys() - reworded.keys())
    planned = [
        MessagePlan(index, "keep", tuple(own))
        if own and verbatim.issuperset(own)
        else _message(index, own, shown, reworded)
        for index, own in enumerate(seqs)
    ]
    index_of = {seq: index for index, own in enumerate(seqs) for seq in own}
    start = next((index for index, own in enumerate(seqs) if not (own and front.issuperset(own))), len(seqs))
    inserted = [
        *_summaries(context.summaries, state, start),
        *([Inserted(start, "note", "user", state.note)] if state.note else ()),
        *sorted(_between(context.units, state, index_of, start), key=lambda one: one.before),
        *(Inserted(len(seqs), kind, "user", content_text(content), name) for kind, name, content in tail),
    ]
    return ClientPlan(tuple(_with_silent(planned)), tuple(inserted))


def _reworded(units: Sequence[Unit]) -> dict[int, Block]:
    """Return the blocks, by seq, of items that are not shown verbatim; a unit keeps its blocks from call to call."""
    found: dict[int, Block] = {}
    for unit in units:
        if any(item.stub is not None or _erased(item) for item in unit.all_items):
            shown = (item for item in unit.all_items if item.shown)
            pairs = zip(shown, unit.blocks, strict=False)  # blocks of pending results follow
            found.update((item.event.seq, block) for item, block in pairs if item.stub is not None or _erased(item))
    return found


def _message(index: int, seqs: Sequence[int], shown: Mapping[int, Item], reworded: Mapping[int, Block]) -> MessagePlan:
    """Return the plan for a message that is not shown verbatim or has no events."""
    parts = tuple(_part(seq, shown.get(seq), reworded.get(seq)) for seq in seqs)
    actions = {part.action for part in parts}
    if len(actions) == 1 and actions != {"replace"}:
        return MessagePlan(index, parts[0].action, tuple(seqs))
    if len(parts) == 1:
        return MessagePlan(index, "replace", tuple(seqs), parts[0].text)
    return MessagePlan(index, "replace", tuple(seqs), parts=parts)


def _part(seq: int, item: Item | None, reworded: Block | None) -> PartPlan:
    if item is None:
        return PartPlan(seq, None, "drop")
    if reworded is None:
        return PartPlan(seq, item.event.call_id, "keep")
    return PartPlan(seq, item.event.call_id, "replace", reworded.text)


def _erased(item: Item) -> bool:
    return item.event.tokens == ERASED_TOKENS and bool((item.event.body or {}).get("redacted"))


def _with_silent(planned: Sequence[MessagePlan]) -> list[MessagePlan]:
    """Replace the plans of messages without events, such as reasoning.

    Providers require reasoning together with what follows it, so these messages are kept only if the next one is.
    """
    done: list[MessagePlan] = []
    follows: Action = "drop"
    for plan in reversed(planned):
        if plan.seqs:
            follows = plan.action
            done.append(plan)
        else:
            done.append(MessagePlan(plan.index, "keep" if follows == "keep" else "drop", ()))
    return done[::-1]


def _summaries(blocks: Sequence[Block], state: Frontier, before: int) -> list[Inserted]:
    ids = {fold.to_seq: fold.id for fold in state.folds if fold.shown}
    return [Inserted(before, "summary", _role(block), block.text, ids.get(block.seq)) for block in blocks]


def _role(block: Block) -> Literal["system", "user"]:
    return "system" if block.kind is Kind.SYSTEM else "user"


def _between(units: Sequence[Unit], state: Frontier, index_of: Mapping[int, int], start: int) -> list[Inserted]:
    """Return the content between the client's messages that the client lacks: notes, pending results and the line that
    ends the older messages after summaries."""
    known = sorted(index_of)
    items = (item for unit in units for item in unit.all_items)
    shown = {index_of[item.event.seq] for item in items if item.shown and item.event.seq in index_of}
    found: list[Inserted] = []

    def position_after(seq: int) -> int:
        at = bisect_right(known, seq)
        return max(start, index_of[known[at]] if at < len(known) else max(index_of.values(), default=-1) + 1)

    end = start  # of the units so far: an event within a round is inserted after the round
    before = 0
    for unit in units:
        if state.older_to and unit.seq > state.older_to >= before:
            found.append(Inserted(max(end, position_after(unit.seq - 1)), "note", "user", RESUMED))
        before = unit.seq
        for item in unit.items:
            if item.event.seq in index_of or not item.shown:
                continue
            block = item.block()
            if block.kind in (Kind.NOTE, Kind.USER, Kind.SYSTEM):
                found.append(Inserted(max(end, position_after(item.event.seq)), "note", _role(block), block.text))
        seqs = [item.event.seq for item in unit.all_items if item.event.seq in index_of]
        end = max([end, *(index_of[seq] + 1 for seq in seqs if seq not in unit.late_results)])
        for place in sorted(index_of[seq] for seq in unit.late_results if seq in index_of):
            if shown.isdisjoint(range(end, place)):  # no other message that is shown is in between
                end = max(end, place + 1)
        waiting = unit.open_calls
        found += [Inserted(end, "pending", "tool", PENDING, call_id=one.call_id) for one in waiting]
    return found
