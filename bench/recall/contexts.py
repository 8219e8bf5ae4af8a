"""All evidence of a question in the model's input: the rendered context, and one recall by the question's words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from app.core.log.event import Event
from app.core.tokens.counter import Counter
from app.wings.recall.answer import fill, pick, weights_of
from bench.recall.ranking import FIRST, Index, Question, QuestionedDialogue, entries
from bench.retention import dialogue
from bench.retention.points import message_of

ROOM: Final = 1_000
"""Tokens of one recall. They are taken off the window, so that the context and the recall fit it together."""

Make: TypeAlias = Callable[[Sequence[Event], int, Counter], dialogue.Context]
MAKERS: Final[Mapping[str, Make]] = {"plain": dialogue.plain, "rendered": dialogue.rendered}


def table(dialogues: Sequence[QuestionedDialogue]) -> str:
    """Return Markdown: by window, the share of questions all of whose evidence is visible word for word."""
    lines = [
        f"All evidence word for word. With a recall: a context of the window less {ROOM:,} tokens, and at most {FIRST}"
        f" results in at most {ROOM:,} tokens.\n",
        "| tokens by | window | plain | plain, with a recall | rendered | rendered, with a recall"
        " | tokens of a recall | largest of all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, counter in dialogue.COUNTERS.items():
        for window in dialogue.WINDOWS:
            cells: list[str] = []
            sizes: list[int] = []
            peak = 0
            for make in MAKERS.values():
                alone = [found for asked in dialogues for found in _alone(asked, make, window, counter)]
                cells.append(f"{sum(alone) / len(alone):.1%}")
                both = [row for asked in dialogues for row in _with_recall(asked, make, window, counter)]
                cells.append(f"{sum(found for found, _, _ in both) / len(both):.1%}")
                sizes += [size for _, size, _ in both]
                peak = max(peak, *(whole for _, _, whole in both))
            if peak > window:
                raise AssertionError(f"{peak} tokens in a window of {window}")
            mean = sum(sizes) / len(sizes)
            lines.append(f"| {name} | {window:,} | {' | '.join(cells)} | {mean:,.0f} | {peak:,} |")
    return "\n".join(lines)


def _alone(asked: QuestionedDialogue, make: Make, window: int, counter: Counter) -> list[bool]:
    visible = dialogue.visibility(asked.one, make(asked.one.events, window, counter), True)
    return [all(map(visible, question.evidence)) for question in asked.questions]


def _with_recall(asked: QuestionedDialogue, make: Make, window: int, counter: Counter) -> list[tuple[bool, int, int]]:
    """Return for each question whether all evidence is visible, the recall's tokens, and the tokens of both."""
    events = asked.one.events
    context = make(events, window - ROOM, counter)
    visible = dialogue.visibility(asked.one, context, True)
    index = Index(entries(events))
    by_seq = {event.seq: event for event in events}
    shown = {event.seq for event in events[context.first :]}
    rows = []
    for question in asked.questions:
        recalled, tokens = _recalled(question, index, by_seq, shown, counter)
        found = all(index in recalled or visible(index) for index in question.evidence)
        rows.append((found, tokens, context.tokens + tokens))
    return rows


def _recalled(
    question: Question, index: Index, events: Mapping[int, Event], shown: set[int], counter: Counter
) -> tuple[set[int], int]:
    """Return the messages that one recall returns whole, and its tokens."""
    order = [one.seq for one in index.find(question.text)]
    weights = weights_of(question.text, index.holding(question.text))
    chosen = [events[seq] for seq in pick(order, shown, FIRST)]
    answer = fill(chosen, shown, weights, ROOM, counter)
    whole = {message_of(one.event) for one in answer.given if one.content == one.event.text}
    return whole, answer.tokens
