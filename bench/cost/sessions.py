"""Recorded sessions as logs and model calls, the input of the planner and of the other players."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from app.core.log.appends import OpenCall, SessionState, as_stored, body_text, parse_batch, place
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import Counter
from app.tokenizers import Counting
from bench.cost.runs import runs
from bench.edits import quoted, strings, unnumbered
from palimpsest_tools.bench.sessions import CallMade, LoggedSession, Value
from palimpsest_tools.recordings import neutral
from palimpsest_tools.recordings.recording import AppendEvents, ModelCall

MODEL: Final = "claude-sonnet-4-5"
COUNTER: Final[Counter] = Counting({}).counter(MODEL)
STEP_SECONDS: Final = 5.0
USER_SECONDS: Final = 20.0
"""Duration of a message of the model and of the user where the recording has no clock."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that a call quotes to replace it, and the seqs of the earlier events that hold it word for word."""

    text: str
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call(CallMade):
    """A model call, and the texts that its edits replace."""

    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Session(LoggedSession):
    """One recording, with the texts that edits replace."""

    calls: tuple[Call, ...]


def load(file: Path, *, outside: bool = False, short: int | None = None) -> Iterator[Session]:
    """Load a neutral JSONL file's sessions; `outside` moves their prefix out, `short` is the tool calls of a run."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            whole = json.loads(line)
            for value in [whole] if short is None else runs(whole, short):
                yield without_prefix(value, number) if outside else session(value, number)


def without_prefix(value: dict[str, Any], line: int) -> Session:
    """Return one line of the file with its tools and system prompt outside of the log."""
    whole = session(value, line)
    fixed = (e.tokens for e in whole.events if e.type in (EventType.TOOLS, EventType.SYSTEM_PROMPT))
    bare = session({**value, "tools": None, "system": None}, line)
    return replace(bare, prefix_tokens=bare.prefix_tokens + sum(fixed))


def session(value: dict[str, Any], line: int) -> Session:
    """Return one line of the file as a session."""
    recording = neutral.recording(value, line)
    meta = value.get("meta") or {}
    has_clock = meta.get("ts") is not None
    log = _Log()
    starts: list[tuple[int, float]] = []
    clock = 0.0
    for step in recording.batches():
        if isinstance(step, ModelCall):
            clock = max(clock, step.at) if has_clock and step.at is not None else clock + STEP_SECONDS
            starts.append((len(log.events), clock))
        elif isinstance(step, AppendEvents):
            if not has_clock and any(event["type"] == "user.message" for event in step.events):
                clock += USER_SECONDS
            log.append(list(step.events), clock)
    values, edits = _values(value, log), _edits(value, log)
    calls = tuple(
        Call(count, at, values.get(number, ()), edits.get(number, ())) for number, (count, at) in enumerate(starts)
    )
    return Session(recording.id, tuple(log.events), calls, int(meta.get("prefix_tokens_est") or 0))


class _Log:
    """A log that is appended to as in the store."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._state = SessionState()

    def append(self, raw: list[Any], at: float) -> None:
        drafts = parse_batch(json.loads(json.dumps(raw)))
        before = self._state
        batch = place(drafts, [COUNTER.event(draft) for draft in drafts], before.turn)
        bodies = [json.loads(body_text(draft, index)) for index, draft in enumerate(drafts)]
        self.events += as_stored(before, batch, bodies, at)
        still_open = {name: call for name, call in before.open_calls.items() if name not in batch.needs_open}
        opened = {name: OpenCall(before.head + n, tool) for name, (n, tool) in batch.opens.items()}
        self._state = SessionState(
            len(self.events),
            before.turns + batch.turns_begun,
            before.tokens + batch.tokens,
            still_open | opened,
            batch.turn_after,
        )


def text_of(event: Event) -> str:
    """Return all text of an event, arguments included, without line numbers."""
    body = event.body or {}
    return unnumbered("\n".join(strings({name: body.get(name) for name in ("content", "arguments")})))


def _call_numbers(value: dict[str, Any]) -> dict[int, int]:
    """Return the number of the call that wrote each message, by the message's index."""
    by_model = [index for index, message in enumerate(value["messages"]) if message["role"] == "assistant" and index]
    return {index: call for call, index in enumerate(by_model)}


def _edits(value: dict[str, Any], log: _Log) -> dict[int, tuple[Edit, ...]]:
    """Return the edits whose text had been seen, by the number of the call that made them."""
    texts = [(event.seq, _message_of(event), text_of(event)) for event in log.events if event.rendered]
    found: dict[int, list[Edit]] = {}
    for index, call in _call_numbers(value).items():
        for made in value["messages"][index].get("tool_calls") or ():
            for text in quoted(made["arguments"]):
                holders = tuple(seq for seq, message, held in texts if message < index and text in held)
                if holders:
                    found.setdefault(call, []).append(Edit(text, holders))
    return {call: tuple(edits) for call, edits in found.items()}


def _values(value: dict[str, Any], log: _Log) -> dict[int, tuple[Value, ...]]:
    """Return the values used, by the number of the call that used them."""
    call_of = _call_numbers(value)
    message_of = [_message_of(event) for event in log.events]
    found: dict[int, list[Value]] = {}
    for used in (value.get("meta") or {}).get("grounding") or ():
        holders = tuple(
            event.seq
            for event, message in zip(log.events, message_of, strict=True)
            if message < used["i"] and used["v"] in event.text
        )
        if holders:
            found.setdefault(call_of[used["i"]], []).append(Value(used["v"], holders, used["kind"] == "tool"))
    return {call: tuple(values) for call, values in found.items()}


def _message_of(event: Event) -> int:
    """Return the index of the event's message, from an id of the form `m<message>.<part>`; -1 for the prefix."""
    name = str((event.body or {}).get("id", ""))
    return int(name[1:].split(".")[0]) if "." in name else -1
