"""All evidence of a question in one recall, by kind of question: in ten results, and in the default number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.tokens.counter import Counter
from app.wings.recall.answer import LIMIT, TOKENS, short_ones
from bench.recall.ranking import FIRST, Index, Question, QuestionedDialogue, entries
from bench.retention import dialogue
from bench.retention.points import message_of

MANY: Final = 4
"""Number of evidence turns from which on questions are counted together."""


@dataclass(frozen=True, slots=True)
class Results:
    """A question, the messages in its first results and in those without a limit, and the tokens of the latter."""

    question: Question
    first: frozenset[int]
    more: frozenset[int]
    tokens: int

    @property
    def turns(self) -> int:
        """Number of messages that hold the answer."""
        return len(set(self.question.evidence))

    def whole(self, messages: frozenset[int]) -> bool:
        """Return whether `messages` include all that hold the answer."""
        return messages.issuperset(self.question.evidence)


def table(dialogues: Sequence[QuestionedDialogue]) -> str:
    """Return Markdown: by category and by number of evidence turns, the share of questions with all evidence."""
    counter = dialogue.COUNTERS["heuristic"]
    results = [one for asked in dialogues for one in _results(asked, counter)]
    kinds: dict[str, list[Results]] = {"all": results}
    for one in sorted(results, key=lambda one: one.question.category):
        kinds.setdefault(one.question.category or "without a category", []).append(one)
    for one in sorted(results, key=lambda one: one.turns):
        count = min(one.turns, MANY)
        kinds.setdefault(f"of {count}{' or more' * (count == MANY)} turns", []).append(one)
    lines = [
        f"| questions | | all evidence in {FIRST} | without a limit | results, mean | their tokens, mean |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, rows in kinds.items():
        first = sum(one.whole(one.first) for one in rows) / len(rows)
        more = sum(one.whole(one.more) for one in rows) / len(rows)
        number, tokens = (
            sum(sizes) / len(rows) for sizes in zip(*((len(o.more), o.tokens) for o in rows), strict=True)
        )
        lines.append(f"| {name} | {len(rows)} | {first:.1%} | {more:.1%} | {number:.0f} | {tokens:,.0f} |")
    return "\n".join(lines)


def _results(asked: QuestionedDialogue, counter: Counter) -> Iterator[Results]:
    index = Index(entries(asked.one.events))
    message = {event.seq: message_of(event) for event in asked.one.events}
    sizes = {event.seq: counter.message(event.text) for event in asked.one.events}
    for question in asked.questions:
        found = index.find(question.text)
        first = [one.seq for one in found[:LIMIT]]
        scores = {one.seq: one.score for one in found}
        more = first + short_ones(scores, scores, sizes, first, TOKENS)
        yield Results(
            question,
            frozenset(message[one.seq] for one in found[:FIRST]),
            frozenset(message[seq] for seq in more),
            sum(sizes[seq] for seq in more),
        )
