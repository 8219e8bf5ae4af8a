"""Whether what stands for left out events tells how to get them back: only where the agent has the means.

The reducers word everything for an agent that has them, which takes no less. For one that has not, what a plan has
worded anew is worded again without. What stood before keeps its words (I5).
"""

from collections.abc import Sequence
from dataclasses import replace

from app.core.cover.summaries import Summary
from app.core.log.event import content_text
from app.core.log.events import EventType, canonical_json
from app.core.plan.context import wording
from app.core.plan.context.context import Context, Item, Reduced
from app.core.plan.context.frontier import Frontier, Stub
from app.core.plan.context.summary_blocks import summary_blocks
from app.core.policy.summarize import Summarize
from app.core.tokens.counter import Counter, TextKind


def unnamed(before: Frontier, after: Reduced, summaries: Sequence[Summary], rules: Summarize) -> Reduced:
    """The context and state `after` a plan that began at `before`, what is new in it without naming recall."""
    context, state = _stubs(before, after)
    if state.note and state.note != before.note:
        text = wording.note(state.left_out, state.floor, named=False)
        state = replace(state, note=text, note_tokens=context.counter.message(text))
        context = replace(context, note_tokens=state.note_tokens)
    if state.folds == before.folds:
        return Reduced(context, state)
    held = {fold.id: fold.recall for fold in before.folds}
    state = replace(state, folds=tuple(replace(fold, recall=held.get(fold.id, False)) for fold in state.folds))
    known = {one.id: one for one in summaries}
    blocks = summary_blocks([known[fold.id] for fold in state.folds], state.folds, rules)
    tokens = sum(context.counter.message(content_text(block.content)) for block in blocks)
    context = replace(context, summaries=blocks, summary_tokens=tokens)
    return Reduced(context, replace(state, summary_tokens=tokens))


def _stubs(before: Frontier, after: Reduced) -> tuple[Context, Frontier]:
    context, state = after.context, after.state
    if state.stubs == before.stubs:
        return context, state
    held = set(before.stubs)
    items = {item.event.seq: item for item in context.items}
    new = {
        stub.seq: _unnamed(stub, items[stub.seq], context.counter)
        for stub in state.stubs
        if stub not in held and stub.recall and stub.tokens and stub.seq in items
    }
    shown = tuple(
        Item(item.event, new[item.event.seq].tokens, new[item.event.seq]) if item.event.seq in new else item
        for item in context.items
    )
    stubs = tuple(new.get(stub.seq, stub) for stub in state.stubs)
    return replace(context, items=shown), replace(state, stubs=stubs)


def _unnamed(stub: Stub, item: Item, counter: Counter) -> Stub:
    """The stub in other words, and what these take."""
    words = replace(stub, recall=False, text=wording.without_recall(stub.text, stub.seq))
    less = _size(item, stub, counter) - _size(item, words, counter)
    tokens = max(1, stub.tokens - less)
    return replace(words, tokens=tokens, saved=stub.saved + stub.tokens - tokens)


def _size(item: Item, stub: Stub, counter: Counter) -> int:
    block = replace(item, stub=stub).block()
    if item.event.type is EventType.TOOL_CALL and not stub.text:
        return counter.estimator.count(canonical_json(block.arguments), TextKind.DATA)
    text = content_text(block.content)
    return counter.result(text) if item.event.type is EventType.TOOL_RESULT else counter.message(text)
