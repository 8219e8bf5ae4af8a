"""Removal of recall hints, for an agent that cannot recall.

Reducers write and count every text with its hint, so that a plan still fits without them. Only texts that are new in a
plan are written again without hints; those of earlier plans stay as they are (I5).
"""

from collections.abc import Sequence
from dataclasses import replace

from app.core.cover.summaries import Summary
from app.core.log.event import Event, content_text
from app.core.log.events import EventType
from app.core.plan.context import wording
from app.core.plan.context.context import Context, Reduced
from app.core.plan.context.frontier import Frontier, Stub
from app.core.plan.context.item import Item
from app.core.plan.context.stubs import call_tokens
from app.core.plan.context.summary_blocks import summary_blocks
from app.core.policy.summarize import Summarize
from app.core.tokens.counter import Counter


def omit_recall_hints(before: Frontier, after: Reduced, summaries: Sequence[Summary], rules: Summarize) -> Reduced:
    """Remove recall hints from the texts that the plan `after` adds to `before`, the frontier that it began with."""
    context, state = _stubs(before, after)
    if state.note and state.note != before.note:
        text = wording.note(state.left_out, recall=False)
        state = replace(state, note=text, note_tokens=context.counter.message(text))
        context = replace(context, note_tokens=state.note_tokens)
    if state.folds == before.folds:
        return Reduced(context, state)
    earlier = {fold.id: fold.recall for fold in before.folds}
    state = replace(state, folds=tuple(replace(fold, recall=earlier.get(fold.id, False)) for fold in state.folds))
    known = {summary.id: summary for summary in summaries}
    blocks = summary_blocks([known[fold.id] for fold in state.folds], state.folds, rules)
    tokens = sum(context.counter.message(content_text(block.content)) for block in blocks)
    context = replace(context, summaries=blocks, summary_tokens=tokens)
    return Reduced(context, replace(state, summary_tokens=tokens))


def _stubs(before: Frontier, after: Reduced) -> tuple[Context, Frontier]:
    context, state = after.context, after.state
    if state.stubs == before.stubs:
        return context, state
    earlier = {stub.seq: stub for stub in before.stubs}
    new: dict[int, Stub] = {}
    for stub in state.stubs:
        if not stub.recall or not stub.tokens or stub == earlier.get(stub.seq):
            continue
        item = context.item(stub.seq)
        if item is not None:
            new[stub.seq] = _without_hint(stub, item.event, context.counter)
    stubs = tuple(new.get(stub.seq, stub) for stub in state.stubs)
    return context.with_stubs(new), replace(state, stubs=stubs)


def _without_hint(stub: Stub, event: Event, counter: Counter) -> Stub:
    """Return the stub without its hint, with its tokens counted again."""
    reworded = replace(stub, recall=False, text=wording.without_recall(stub.text, stub.seq))
    if stub.text and stub.text == reworded.text:
        return reworded
    block = Item(event, stub.tokens, reworded).block()
    if event.type is EventType.TOOL_CALL and not reworded.text:
        tokens = call_tokens(event, block.arguments, counter)
    elif event.type is EventType.TOOL_RESULT:
        tokens = counter.result(content_text(block.content)) + counter.native(block.native)
    else:
        tokens = stub.tokens - counter.message(stub.text) + counter.message(reworded.text)
    tokens = max(1, tokens)
    return replace(reworded, tokens=tokens, saved=stub.saved + stub.tokens - tokens)
