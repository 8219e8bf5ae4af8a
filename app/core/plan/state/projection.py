"""Projection: the context that events make under a frontier, and the blocks that show its summaries."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from app.core.log.event import Block, Event, Kind, content_text
from app.core.log.events import EventType
from app.core.memory.cover import Clipped, Summary
from app.core.plan.state import wording
from app.core.plan.state.context import NOTHING_UNREAD, Context, Unread
from app.core.plan.state.frontier import OLDER, SINGLE, SPARSE, Fold, Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.settled import without_lines
from app.core.policy.groups import SHOW_ALL, Summarize, ViewFilter
from app.core.tokens.counter import Counter


def project(
    events: Sequence[Event],
    state: Frontier,
    counter: Counter,
    *,
    turn: int,
    shows: ViewFilter = SHOW_ALL,
    ephemeral_tokens: int = 0,
    unread: Unread = NOTHING_UNREAD,
    summaries: tuple[Block, ...] = (),
) -> Context:
    """Build the context of `events` under the frontier `state`."""
    stubs = {stub.seq: stub for stub in state.stubs}
    kept = frozenset(state.kept)
    filters = shows != SHOW_ALL
    filtered_calls = _filtered_calls(events, shows) if filters else frozenset()

    def reached(seq: int) -> bool:
        return seq > state.floor or seq in kept

    items = []
    prefix = []
    front = {*state.system_seqs, state.tools_seq}
    for event in events:
        if event.seq in front:
            prefix.append(event)
        elif event.rendered and reached(event.seq) and not (filters and _is_filtered(event, filtered_calls, shows)):
            if event.call_seq is not None and not reached(event.call_seq):
                continue  # its call was dropped or folded
            stub = stubs.get(event.seq)
            items.append(Item(event, stub.tokens if stub else event.tokens, stub))
    return Context(
        items=tuple(items),
        prefix=tuple(prefix),
        turn=turn,
        counter=counter,
        note_tokens=state.note_tokens,
        ephemeral_tokens=ephemeral_tokens,
        unread=unread,
        summaries=summaries,
        summary_tokens=state.summary_tokens,
    )


def _filtered_calls(events: Iterable[Event], shows: ViewFilter) -> frozenset[int]:
    return frozenset(e.seq for e in events if e.type is EventType.TOOL_CALL and shows.leaves_out(e.type, e.author))


def _is_filtered(event: Event, filtered_calls: frozenset[int], shows: ViewFilter) -> bool:
    """Return whether the view's filter leaves an event out; a result goes with its call, so that pairs stay whole."""
    if event.type is EventType.TOOL_RESULT:
        return event.call_seq in filtered_calls or shows.leaves_out_type(event.type)
    return shows.leaves_out(event.type, event.author)


def summary_blocks(cover: Sequence[Summary], folds: Sequence[Fold], rules: Summarize) -> tuple[Block, ...]:
    """Return one block with all summaries whose folds are shown, and a line about the others.

    `folds` are those of the summaries in `cover`, in the same order. If one is not `joined`, as in epochs of earlier
    versions, each summary gets a block of its own. A summary whose fold has no `recall` gets no recall hint; a text
    about several summaries gets the hint only if all folds have it.
    """
    if not cover:
        return ()
    kind = Kind.SYSTEM if rules.role == "system" else Kind.NOTE
    cover = [_as_shown(summary, fold) for summary, fold in zip(cover, folds, strict=True)]
    shown = {fold.id for fold in folds if fold.shown}
    unrecallable = {fold.id for fold in folds if not fold.recall}
    if rules.view == "clip":
        text = wording.archive(_clipped(cover, shown), recall=not unrecallable)
        return (Block(kind, cover[-1].to_seq, text, replaced=True),)
    omitted = sum(summary.id not in shown for summary in cover)
    if all(fold.joined for fold in folds):
        last = replace(folds[-1], dated=all(fold.dated for fold in folds))
        joined = [
            replace(s, text=without_lines(s.text, last.settled, precise=last.precise)) for s in cover if s.id in shown
        ]
        text = wording.join_summaries(joined, omitted, recall=not unrecallable, last=last)
        return (Block(kind, cover[-1].to_seq, text, replaced=True),)
    texts = {s.to_seq: wording.summary(s, recall=s.id not in unrecallable) for s in cover if s.id in shown}
    if omitted:
        first = min(texts, default=cover[-1].to_seq)
        texts[first] = "\n\n".join(
            filter(None, (wording.omitted_line(omitted, recall=not unrecallable), texts.get(first)))
        )
    return tuple(Block(kind, seq, text, replaced=True) for seq, text in sorted(texts.items()))


def count_summaries(counter: Counter, blocks: Sequence[Block], folds: Sequence[Fold]) -> int:
    """Return the tokens of the blocks of summaries, and of the line that ends the older messages after them."""
    line = counter.message(wording.RESUMED) if folds and folds[-1].follows in (OLDER, SPARSE, SINGLE) else 0
    return sum(counter.message(content_text(block.content)) for block in blocks) + line


def _as_shown(summary: Summary, fold: Fold) -> Summary:
    if not fold.chars:
        return summary
    return replace(summary, text=wording.abridge_summary(summary.text, fold.chars, ordered=fold.ordered))


def _clipped(cover: Sequence[Summary], shown: Collection[str]) -> Clipped:
    omitted = [index for index, summary in enumerate(cover) if summary.id not in shown]
    if not omitted:
        return Clipped(tuple(cover))
    first, last = omitted[0], omitted[-1] + 1
    return Clipped(tuple(cover[:first]), tuple(cover[first:last]), tuple(cover[last:]))
