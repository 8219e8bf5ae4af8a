"""Recorded sessions as agents post them: the events since the last call, as a provider's messages."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice
from pathlib import Path
from typing import Any, Final

from app.core.log.events import Json
from bench.quality.recorded import SYSTEM
from palimpsest_tools.recordings import neutral
from palimpsest_tools.recordings.recording import AppendEvents, ModelCall, Object, Recording

PREFERRED: Final = ("coding_agent", "long_coding_agent")
"""Recordings that hold coding sessions; of a folder that has them, only these are used."""
LIFE_CHARS: Final = 350_000
"""Size of a session in characters; shorter recordings are replayed one after the other until it is reached."""

BULK_EVENTS: Final = 500
"""Events in one request of an import."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """The messages between two calls of a model, each as JSON, and the number of their events."""

    messages: tuple[str, ...]
    events: int


@dataclass(frozen=True, slots=True)
class Life:
    """A session: the events of its system prompt and tools as JSON, and the messages before each call."""

    id: str
    head: tuple[str, ...]
    steps: tuple[Step, ...]

    def batches(self, events: int) -> Iterator[tuple[str, ...]]:
        """Yield the messages of the first steps that hold `events` events, in as few requests as possible."""
        messages: list[str] = []
        held = begun = 0
        for step in self.steps:
            if held >= events:
                break
            if held + step.events - begun > BULK_EVENTS:
                yield tuple(messages)
                messages, begun = [], held
            messages += step.messages
            held += step.events
        if messages:
            yield tuple(messages)


def body_of(form: str, messages: Sequence[str]) -> bytes:
    """Return the body of a request that appends messages."""
    return f'{{"format":"{form}","messages":[{",".join(messages)}]}}'.encode()


def load(folder: Path, files: Sequence[str] = ()) -> list[Recording]:
    """Load the sessions of a folder's neutral JSONL files: the named ones, or the coding sessions, or else all.

    Raises ValueError if there are none.
    """
    found = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    names = files or [name for name in PREFERRED if name in found] or list(found)
    recordings = [recording for name in names for recording in _recordings(found[name])]
    if not recordings:
        raise ValueError(f"there is no neutral JSONL in {folder}")
    return recordings


def lives_of(recordings: Sequence[Recording], form: str, chars: int = LIFE_CHARS) -> list[Life]:
    """Return a life for each recording, beginning with that recording, in a provider's format."""
    return [a_life(recordings, number, form, chars=chars) for number in range(len(recordings))]


def _recordings(file: Path) -> Iterator[Recording]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            value = json.loads(line)
            if not neutral.is_neutral(value):
                return
            yield neutral.recording({**value, "system": value.get("system") or SYSTEM}, number)


def a_life(recordings: Sequence[Recording], first: int, form: str, *, chars: int = 0, events: int = 0) -> Life:
    """Return a life of a recording and those after it, of at least `chars` and `events`; call ids are made unique."""
    steps: list[Step] = []
    had_chars = had_events = 0
    for part, recording in enumerate(islice(cycle(recordings), first % len(recordings), None)):
        mark = f"_{part}" if part else ""
        for happened in _between_calls(recording):
            messages = [json.dumps(message) for message in WRITERS[form](happened, mark)]
            had_chars += sum(map(len, messages))
            had_events += len(happened)
            steps.append(Step(tuple(messages), len(happened)))
        if had_chars >= chars and had_events >= events:
            break
    begun = recordings[first % len(recordings)]
    return Life(begun.id, tuple(json.dumps(event) for event in begun.head()), tuple(steps))


def _between_calls(recording: Recording) -> Iterator[list[Event]]:
    pending: list[Event] = []
    for step in recording.steps:
        if isinstance(step, AppendEvents):
            pending += map(dict, step.events)
        elif isinstance(step, ModelCall) and pending:
            yield pending
            pending = []


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if isinstance(part, dict) and "text" in part)


def _arguments(value: Json) -> Object:
    if isinstance(value, dict):
        return value
    try:
        found = json.loads(str(value))
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": value}


def _by_model(event: Event) -> bool:
    return event["type"] in ("assistant.message", "tool.call")


def anthropic(events: Sequence[Event], mark: str) -> Iterator[Event]:
    """Yield Anthropic messages, each a whole turn of the model or the user."""
    for by_model, group in groupby(events, _by_model):
        parts: list[Event] = []
        for event in group:
            if event["type"] == "tool.call":
                called = {"id": event["call_id"] + mark, "name": event["tool"]}
                parts.append({"type": "tool_use", **called, "input": _arguments(event["arguments"])})
            elif event["type"] == "tool.result":
                name = event["call_id"] + mark
                parts.append({"type": "tool_result", "tool_use_id": name, "content": _text(event["content"])})
            else:
                parts.append({"type": "text", "text": _text(event["content"]) or "."})
        yield {"role": "assistant" if by_model else "user", "content": parts}


def openai(events: Sequence[Event], mark: str) -> Iterator[Event]:
    """Yield messages of OpenAI's chat completions."""
    for by_model, group in groupby(events, _by_model):
        if not by_model:
            yield from (_openai_input(event, mark) for event in group)
            continue
        texts: list[str] = []
        calls: list[Event] = []
        for event in group:
            if event["type"] == "tool.call":
                function = {"name": event["tool"], "arguments": json.dumps(_arguments(event["arguments"]))}
                calls.append({"id": event["call_id"] + mark, "type": "function", "function": function})
            else:
                texts.append(_text(event["content"]))
        yield {"role": "assistant", "content": "\n".join(texts) or None} | ({"tool_calls": calls} if calls else {})


def _openai_input(event: Event, mark: str) -> Event:
    text = _text(event["content"])
    if event["type"] == "tool.result":
        return {"role": "tool", "tool_call_id": event["call_id"] + mark, "content": text}
    return {"role": "system" if event["type"] == "system.message" else "user", "content": text}


def openai_responses(events: Sequence[Event], mark: str) -> Iterator[Event]:
    """Yield items of OpenAI's responses."""
    for event in events:
        if event["type"] == "tool.call":
            called = {"call_id": event["call_id"] + mark, "name": event["tool"]}
            yield {"type": "function_call", **called, "arguments": json.dumps(_arguments(event["arguments"]))}
        elif event["type"] == "tool.result":
            name = event["call_id"] + mark
            yield {"type": "function_call_output", "call_id": name, "output": _text(event["content"])}
        else:
            role = "assistant" if _by_model(event) else "user"
            kind = "output_text" if role == "assistant" else "input_text"
            part = {"type": kind, "text": _text(event["content"])}
            yield {"type": "message", "role": role, "content": [part]}


WRITERS: Final[dict[str, Callable[[Sequence[Event], str], Iterator[Event]]]] = {
    "anthropic": anthropic,
    "openai": openai,
    "openai-responses": openai_responses,
}
MODELS: Final = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-4o", "openai-responses": "gpt-4o"}
