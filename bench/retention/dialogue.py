"""Dialogues with questions: the share with all evidence for an answer in the context, with a summary and without."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from app.core.compaction.next_span import next_span, sizes, verbatim_start
from app.core.lexicon.words import content_words
from app.core.log.event import Event, content_text
from app.core.memory.cover import Summary
from app.core.memory.digest import digest_of
from app.core.memory.extractive import write_summary
from app.core.plan.pipeline import plan
from app.core.plan.state.frontier import START
from app.core.plan.state.projection import project
from app.core.plan.update import PlanInputs
from app.core.policy.policy import parse_policy
from app.core.tokens.budget import budget_for
from app.core.tokens.counter import FORMULAS, HEURISTIC, Counter
from app.core.tokens.scales import AREA
from bench.cost.sessions import session
from bench.retention.points import message_of

WINDOWS: Final = (4096, 8192, 16384)
POLICY: Final = {
    "reserve_tokens": 0,
    "low_water": 1,
    "summarize": {"view": "latest", "max_ratio": 0.72, "max_tokens": 100_000, "keep_ratio": 0.25},
}
"""A policy with one summary for all but the newest turns, which have a quarter of the target."""
ENOUGH: Final = 0.8
COUNTERS: Final = {"heuristic": Counter(HEURISTIC, AREA), "ceil4": Counter(FORMULAS["ceil4"], AREA)}
"""Our own estimate for a Claude model, and four characters a token, as in published figures."""


Make: TypeAlias = "Callable[[Sequence[Event], int, Counter], Context]"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A dialogue's messages, and for each question its words, its category and the messages that hold the answer."""

    events: tuple[Event, ...]
    evidence: tuple[tuple[int, ...], ...]
    questions: tuple[str, ...]
    categories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """A model's input: messages from `first` on verbatim, after the lines of a summary."""

    first: int
    lines: tuple[str, ...]
    tokens: int


def load(file: Path) -> Iterator[Dialogue]:
    """Load the dialogues with questions of a neutral JSONL file."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            value = json.loads(line)
            asked = (value.get("meta") or {}).get("qa") or ()
            if asked:
                events = tuple(event for event in session(value, number).events if message_of(event) >= 0)
                answered = [question for question in asked if question.get("evidence_idx")]
                evidence = tuple(tuple(question["evidence_idx"]) for question in answered)
                questions = tuple(question["question"] for question in answered)
                yield Dialogue(
                    events, evidence, questions, tuple(question.get("category", "") for question in answered)
                )


def plain(events: Sequence[Event], window: int, counter: Counter) -> Context:
    """Return only the newest events that fit."""
    first, room = len(events), window
    while first and (cost := counter.message(events[first - 1].text)) <= room:
        first, room = first - 1, room - cost
    return Context(first, (), window - room)


def rendered(events: Sequence[Event], window: int, counter: Counter) -> Context:
    """Return the planned context, with the summary that a worker would have written for it."""
    policy = parse_policy(POLICY)
    budget = budget_for(policy, window, counter.estimator.margin)
    turn = events[-1].turn
    whole = project(events, START, counter, turn=turn)
    stop = verbatim_start(whole, budget, policy)
    span = None if stop is None else next_span(whole, 0, stop, policy, sizes(policy, budget), requested=True)
    cover: tuple[Summary, ...] = ()
    if span is not None:
        room = sizes(policy, budget).summary
        text = write_summary(span.events, span.turn_start_events, "", digest_of(span.all_events), room, counter)
        cover = (Summary("s", 1, span.to_seq, 0, counter.message(text), text, span.tokens, len(span.all_events)),)
    made = plan(PlanInputs(events, turn, counter, tree=cover), budget, policy, START, force=True)
    shown = {item.event.seq for item in made.context.items}
    lines = tuple(line for block in made.context.summaries for line in content_text(block.content).split("\n"))
    first = next((at for at, event in enumerate(events) if event.seq in shown), len(events))
    return Context(first, lines, made.context.tokens)


def evidence_share(
    dialogues: Sequence[Dialogue], window: int, counter: Counter, make: Make, *, strict: bool
) -> tuple[float, int]:
    """Return the share of questions all of whose evidence is visible, and the largest context's tokens."""
    found: list[bool] = []
    largest = 0
    for one in dialogues:
        context = make(one.events, window, counter)
        largest = max(largest, context.tokens)
        visible = visibility(one, context, strict)
        found += [all(visible(index) for index in evidence) for evidence in one.evidence]
    return sum(found) / max(1, len(found)), largest


def visibility(one: Dialogue, context: Context, strict: bool) -> Callable[[int], bool]:
    """Return a test for visible messages: word for word, or if not `strict`, most words in a line with the speaker."""
    texts = {message_of(event): " ".join(event.text.split()) for event in one.events}
    place = {message_of(event): at for at, event in enumerate(one.events)}
    lines = [(line, content_words(line)) for line in context.lines]

    @cache
    def visible(index: int) -> bool:
        if index not in place or place[index] >= context.first:
            return index in place
        text = texts[index]
        if strict:
            return any(text in line for line, _ in lines)
        words = content_words(text)
        speaker = re.match(r"(?:\[[^\]]*\] )?([^:]{1,40}):", text)
        return any(
            len(words & held) >= math.ceil(ENOUGH * len(words)) and (speaker is None or speaker[1] in line)
            for line, held in lines
        )

    return visible


def table(dialogues: Sequence[Dialogue]) -> str:
    """Return Markdown: the plain window against a window with a summary, by both rules."""
    questions = sum(len(one.evidence) for one in dialogues)
    lines = [
        f"All evidence of {questions} questions. `verbatim`: every evidence message stands in the context word for"
        f" word; `said`: {ENOUGH:.0%} of its content words stand in one line with its speaker.\n",
        "| tokens by | window | plain, verbatim | plain, said | with a summary, verbatim | with a summary, said"
        " | largest context |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, counter in COUNTERS.items():
        for window in WINDOWS:
            cells: list[str] = []
            largest = 0
            for make in (plain, rendered):  # the largest context is the one with a summary
                for strict in (True, False):
                    share, largest = evidence_share(dialogues, window, counter, make, strict=strict)
                    cells.append(f"{share:.1%}")
            if largest > window:
                raise AssertionError(f"{largest} tokens in a window of {window}")
            lines.append(f"| {name} | {window:,} | {' | '.join(cells)} | {largest:,} |")
    return "\n".join(lines)
