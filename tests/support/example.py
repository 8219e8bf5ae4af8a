"""`python -m tests.support.example` writes docs/example.md: a log, its summary and a context of a sample session."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from app.core.lexicon.times import from_seconds, time_text
from app.core.log.event import Event
from app.core.memory.cover import Summary
from app.core.memory.digest import digest_of
from app.core.memory.extractive import write_summary
from app.core.plan.pipeline import Plan, plan
from app.core.plan.state.frontier import START
from app.core.plan.update import PlanInputs
from app.core.policy.policy import parse_policy
from app.core.render.formats.fit import prepare
from app.core.render.request import arrange, write
from app.core.tokens.budget import budget_for
from bench.cost.sessions import COUNTER, session

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "samples" / "handover.jsonl"
PAGE = ROOT / "docs" / "example.md"
WINDOW = 3_000
SPANS = ((1, 2, 640),)
"""The first and last turn of each summary, and its tokens."""
READING = (
    (
        "goal",
        "heights in the station's unit, then a loader that raises on an empty line and says which file",
        ("Heights are printed in feet although the station is metric.", "raise, and say which file"),
    ),
    (
        "decisions",
        "the second of two ways was chosen, the report; the unit comes from the gauge, because stored heights must not"
        " change; two decimals were asked for and taken back",
        ("let's try 2", "because stored heights must not change", "whoops, put it back"),
    ),
    ("constraints", "nothing is pushed", ("Never push, I do that myself.",)),
    (
        "state",
        "all 42 tests passed after the fix, and when `make test` last ran, with a pipe that hides its status;"
        " `make lint` fails",
        ("42 passed", "undefined name 'row'"),
    ),
    (
        "next step",
        "`row` and `BadLine` in `tide/store.py`, and a test with an empty line",
        ("Next I'll write `row` in `tide/store.py`, with `BadLine` beside it, and a test with an empty line.",),
    ),
)
"""Notes of a reader who saw only the context, with the words of the log that they were checked against."""

Json = dict[str, Any]


def log() -> Json:
    """Return the sample as stored."""
    found: Json = json.loads(SAMPLE.read_text(encoding="utf-8"))
    return found


def summaries(events: Sequence[Event]) -> tuple[Summary, ...]:
    """Return the extractive summaries of the log's first turns."""
    return tuple(_summary([e for e in events if first <= e.turn <= last], size) for first, last, size in SPANS)


def _summary(events: Sequence[Event], tokens: int) -> Summary:
    text = write_summary(events, (), "", digest_of(events), tokens, COUNTER)
    starts, ends = (f"{time_text(from_seconds(event.at))[:19]}Z" for event in (events[0], events[-1]))
    return Summary(
        id=f"turns-{events[0].turn}",
        from_seq=1 if events[0].turn == 1 else events[0].seq,
        to_seq=events[-1].seq,
        depth=0,
        tokens=COUNTER.message(text),
        text=text,
        source_tokens=sum(event.tokens for event in events),
        events=len(events),
        starts_at=starts,
        ends_at=ends,
        first_turn=events[0].turn,
        last_turn=events[-1].turn,
    )


def context() -> list[Json]:
    """Return the messages of the sample's context in OpenAI's format."""
    events = session(log(), 1).events
    policy = parse_policy({})
    budget = budget_for(policy, WINDOW, COUNTER.estimator.margin)
    read = PlanInputs(events, events[-1].turn, COUNTER, tree=summaries(events), recall=False)
    made = plan(read, budget, policy, START, force=True)
    assert isinstance(made, Plan)
    request = write("openai", prepare(arrange(made.context, made.state), "openai").layout, ())
    messages: list[Json] = json.loads(request.body)["messages"]
    return messages


def written(messages: Sequence[Json]) -> Iterator[str]:
    """Yield messages as text lines: role, content, then one line per tool call."""
    for message in messages:
        yield f"===== {message['role']}"
        if message.get("content"):
            yield message["content"]
        for call in message.get("tool_calls") or ():
            made = call.get("function", call)
            arguments = made["arguments"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield f"CALL {made['name']} {text}"


def shown(text: str) -> str:
    """Return a text with long listings cut after eight lines."""
    lines = text.split("\n")
    return "\n".join((*lines[:8], f"... {len(lines) - 8} more lines", "")) if len(lines) > 20 else text


def _row(what: str, read: str, quotes: Sequence[str]) -> str:
    quoted = '", "'.join(quotes)
    return f'| {what} | {read} | "{quoted}" |'


def page() -> str:
    """Return the page's Markdown."""
    shortened = [{**message, "content": shown(message.get("content") or "")} for message in log()["messages"]]
    rows = "\n".join(_row(*one) for one in READING)
    return f"""# What a model reads: an example

<!-- `python -m tests.support.example` writes this page from `tests/samples/handover.jsonl`; a test compares them. -->

This is one context as a model reads it: a session that was written for this page, in a window of {WINDOW:,} tokens. A
summary, written without a model, replaces the first two turns. It lists the messages, the actions and their known
outcomes, the agent's newest texts, then files, commands and names, each once. Edits of files in use stay next to it.

## The context

```text
{chr(10).join(written(context()))}
```

## Read without the log

A reader wrote down goal, decisions, constraints, state and next step from the context above. The last column has the
words of the log with which these notes were compared.

| | as read | in the log |
|---|---|---|
{rows}

## The log

Listings are shortened here and complete in the sample.

```text
{chr(10).join(written(shortened))}
```
"""


def main() -> None:
    """Write docs/example.md."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
