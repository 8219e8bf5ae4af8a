"""Questions shown in addition to a fold: a user's short answer means little without its question."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from app.core.log.events import EventType
from app.core.memory.digest.answers import asking_part
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Stub
from app.core.plan.state.items import Item
from app.core.tokens.budget import ROOM_SHARE, Budget
from app.core.tokens.counter import Counter

REDUCER: Final = "questions"
REASON: Final = "question_of_a_short_answer"
WHOLE_TOKENS_MAX: Final = 400
"""The size above which a message is shown by its asking part only."""
BEGINNING: Final = "[The beginning of this message is left out.]"


def keep_questions(done: Reduced, before: Context, budget: Budget) -> Reduced:
    """Show folded questions again, the newest first, if a user's short answer to them is still in the context.

    They are taken from `before`, the context before the reduction: whole, or only the part that asks. The share
    ROOM_SHARE of the trigger stays free for later calls.
    """
    context, state = done.context, done.state
    room = int(budget.trigger * (1 - ROOM_SHARE)) - context.tokens
    back: dict[int, Item] = {}
    for question, answer in reversed(list(_pairs(before))):
        seq = question.event.seq
        shown = context.item(answer.event.seq)
        if seq > state.folded_to or shown is None or shown.stub is not None or context.item(seq) is not None:
            continue
        item = _as_shown(question, answer, context.counter)
        if item is not None and item.tokens <= room:
            room -= item.tokens
            back[seq] = item
    if not back:
        return done
    items = sorted((*context.items, *back.values()), key=lambda item: item.event.seq)
    stubs = sorted((*state.stubs, *(i.stub for i in back.values() if i.stub is not None)), key=lambda stub: stub.seq)
    after = replace(state, kept=tuple(sorted({*state.kept, *back})), stubs=tuple(stubs))
    return Reduced(replace(context, items=tuple(items)), after)


def _pairs(context: Context) -> Iterator[tuple[Item, Item]]:
    """Yield the assistant's messages that are no part of a round with calls, each with the user message after it."""
    last: Item | None = None
    for unit in context.units:
        for item in unit.items:
            if item.event.type is EventType.USER_MESSAGE:
                if last is not None:
                    yield last, item
                last = None
            elif item.event.type is EventType.ASSISTANT_MESSAGE:
                last = item if len(unit.items) == 1 and not item.event.expires else None


def _as_shown(question: Item, answer: Item, counter: Counter) -> Item | None:
    """Return a question as it is shown next to a fold; None if it asks nothing that the answer answers."""
    event, stub = question.event, question.stub
    if stub is not None:
        return question if stub.reducer == REDUCER else None
    part = asking_part(answer.event.text, event.text)
    if not part:
        return None
    text = f"{BEGINNING}\n{part}"
    tokens = counter.message(text)
    if event.tokens <= WHOLE_TOKENS_MAX or tokens >= event.tokens:
        return question
    return Item(event, tokens, Stub(event.seq, 0, tokens, event.tokens - tokens, REDUCER, REASON, text, recall=False))
