"""Recorded sessions as a client appends them, with the points at which a context is measured."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from app.core.log.events import Json
from bench.quality.answers import ShortAnswer, short_answers
from bench.retention.points import Point, points
from palimpsest_tools.recordings import neutral
from palimpsest_tools.recordings.recording import Object

SYSTEM: Final = "You are a coding agent. Never push without being asked. Always say which tests you ran."
"""Prompt of a recording that lacks one."""
WITHOUT_COMPACTION: Final = (0.5, 0.8)
"""Points of the sessions of a file without compactions, as shares of their messages."""
RULE: Final = re.compile(r"\b(?:never|always|must)\b", re.IGNORECASE)
RULE_CHARS: Final = (12, 400)
"""Bounds of a rule's length: a shorter sentence means nothing alone, a longer one is no sentence."""
_SENTENCE_ENDS: Final = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of a recording, its time, and the users' rules and short answers up to it."""

    point: Point
    now: str | None
    constraints: tuple[str, ...]
    answers: tuple[ShortAnswer, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One session: the events of its prefix, its messages in OpenAI's shape, and its moments in order."""

    id: str
    system: str
    head: tuple[Object, ...]
    messages: tuple[Object, ...]
    times: tuple[str | None, ...]
    moments: tuple[Moment, ...]

    def calls(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the spans of messages `first` to `last` that an agent appends before each call, as (from, up to)."""
        begun = first
        for index in range(first, last + 1):
            by_model = index == last or self.messages[index]["role"] == "assistant"
            if by_model and index > begun:
                yield begun, index
                begun = index


def load(file: Path) -> list[Recorded]:
    """Load the sessions of a neutral JSONL file that have a point to measure."""
    with file.open(encoding="utf-8") as lines:
        values = [(json.loads(line), number) for number, line in enumerate(lines, start=1)]
    shares = () if any((value.get("meta") or {}).get("compactions") for value, _ in values) else WITHOUT_COMPACTION
    found = (recorded(value, number, shares) for value, number in values)
    return [one for one in found if one.moments]


def recorded(value: dict[str, Any], line: int, shares: Sequence[float] = ()) -> Recorded:
    """Parse one line of the file; `shares` give the points of a session whose agent never compacted."""
    value = value | {"system": value.get("system") or SYSTEM}
    messages = value["messages"]
    times = _times(value)
    found = sorted(points(value, line, _points_at(messages, shares)), key=lambda point: point.at)
    return Recorded(
        id=value["id"],
        system=value["system"],
        head=neutral.recording(value, line).head(),
        messages=tuple(map(openai_message, messages)),
        times=times,
        moments=tuple(
            Moment(point, times[point.at - 1], rules(messages[: point.at]), short_answers(point.events))
            for point in found
        ),
    )


def rules(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the sentences of users' messages that say never, always or must, each once."""
    texts = (message["content"] for message in messages if message["role"] == "user")
    sentences = (part.strip() for text in texts if isinstance(text, str) for part in _SENTENCE_ENDS.split(text))
    least, most = RULE_CHARS
    return tuple(dict.fromkeys(one for one in sentences if least <= len(one) <= most and RULE.search(one)))


def _points_at(messages: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> tuple[int, ...]:
    """Return the index of the model's first message after each of the shares of a session."""
    by_model = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index]
    found = (next((i for i in by_model if i >= len(messages) * share), None) for share in shares)
    return tuple(sorted({index for index in found if index is not None}))


def _times(value: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the time of each message, made monotonic; None before the first known one."""
    latest: float | None = None
    found: list[str | None] = []
    for at in (value.get("meta") or {}).get("ts") or [None] * len(value["messages"]):
        if at is not None:
            latest = at if latest is None else max(latest, at)
        found.append(None if latest is None else datetime.fromtimestamp(latest, UTC).isoformat())
    return tuple(found)


def openai_message(message: Mapping[str, Any]) -> Object:
    """Return a neutral message in OpenAI's shape."""
    calls = message.get("tool_calls")
    made: dict[str, Json] = {"role": message["role"], "content": message.get("content")}
    if calls:
        made["content"] = message.get("content") or None
        made["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": _text(call["arguments"])},
            }
            for call in calls
        ]
    if message["role"] == "tool":
        made["tool_call_id"] = message["tool_call_id"]
    return made


def _text(arguments: Json) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
