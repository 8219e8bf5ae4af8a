"""Neutral JSONL: one session per line, as messages close to OpenAI's or as the events of a log."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from app.core.lexicon.times import is_time, parse_time, to_seconds
from app.core.log.events import ASSISTANT_SIDE, Json
from palimpsest_tools.recordings.checks import (
    require_content,
    require_object,
    require_objects,
    require_string,
    type_name,
)
from palimpsest_tools.recordings.recording import (
    AppendEvents,
    MalformedRecording,
    Object,
    RecordedMessage,
    RecordedUsage,
    Recording,
    weave,
)
from palimpsest_tools.recordings.tally import list_at, object_at, tokens_at

_ROLES: Final = {"system": "system.message", "developer": "system.message", "user": "user.message"}


def is_neutral(first: Object) -> bool:
    """Return whether a file with this object as its first line holds neutral sessions."""
    return "id" in first and ("messages" in first or "events" in first)


def recording(value: Json, line: int) -> Recording:
    """Read the session on a line: `{"id", "system", "tools", "messages", "meta": {"ts", "usage", "compactions"}}`, or
    `{"id", "model", "events"}`, the events of a log.

    `ts` is in epoch seconds. `usage` has the tokens of the call that wrote message `i`: `in` (without those of the
    cache), `read`, `write`, of which `write_1h` for an hour, and `out`. `compactions` name the
    message after each, `at`.

    Raises MalformedRecording.
    """
    session = require_object(value, "a session", line)
    if "events" in session:
        return _logged(session, line)
    messages = require_objects(session.get("messages"), "messages", line)
    system = session.get("system")
    tools = session.get("tools")
    times = _times(session, len(messages), line)
    meta = object_at(session, "meta")
    usage = {used.get("i"): _usage(used) for used in list_at(meta.get("usage")) if isinstance(used, dict)}
    starts = (tokens_at(object_at(one).get("at")) for one in list_at(meta.get("compactions")))
    whole_until = min((at for at in starts if at is not None), default=len(messages))
    entries = tuple(
        replace(_entry(message, index, at, line), usage=usage.get(index), whole=index < whole_until)
        for index, (message, at) in enumerate(zip(messages, times, strict=True))
    )
    return Recording(
        id=require_string(session.get("id"), "id", line),
        format=None,
        system=None if system is None else require_string(system, "system", line),
        tools=None if tools is None else require_objects(tools, "tools", line),
        steps=weave(entries, AppendEvents),
    )


def _usage(used: Object) -> RecordedUsage | None:
    names = ("in", "read", "write", "out", "write_1h")
    fresh, read, write, output, hour = (tokens_at(used.get(name)) for name in names)
    sent = (fresh or 0) + (read or 0) + (write or 0)
    return RecordedUsage(sent, read, write, output, hour) if sent else None


def _logged(session: Object, line: int) -> Recording:
    """Read the session of a line with events. Consecutive events of the model are one message."""
    if unknown := session.keys() - {"id", "model", "metadata", "events"}:
        raise MalformedRecording(f"{sorted(unknown)[0]} is no field of a session of events", line=line)
    events = require_objects(session["events"], "events", line)
    for index, event in enumerate(events):
        require_string(event.get("type"), f"events[{index}].type", line)
    model = session.get("model")
    return Recording(
        id=require_string(session.get("id"), "id", line),
        format=None,
        system=None,
        tools=None,
        steps=weave(_messages(events), AppendEvents),
        model=None if model is None else require_string(model, "model", line),
        metadata=require_object(session.get("metadata") or {}, "metadata", line),
    )


def _messages(events: tuple[Object, ...]) -> Iterator[RecordedMessage]:
    for by_model, run in groupby(events, key=lambda event: event["type"] in ASSISTANT_SIDE):
        for message in (tuple(run),) if by_model else ((event,) for event in run):
            yield RecordedMessage(message, by_model, _epoch(message[-1].get("occurred_at")))


def _epoch(time: Json) -> float | None:
    """Return a time of the log in epoch seconds, UTC if it has no zone; None if the log holds something else."""
    try:
        return to_seconds(parse_time(time))
    except (TypeError, ValueError):
        return None


def _times(session: Object, messages: int, line: int) -> tuple[float | None, ...]:
    times = require_object(session.get("meta") or {}, "meta", line).get("ts")
    if times is None:
        return (None,) * messages
    if not isinstance(times, list) or len(times) != messages:
        raise MalformedRecording("meta.ts must hold one time (or null) for each message", line=line)
    for at in times:
        if at is not None and (isinstance(at, bool) or not isinstance(at, int | float)):
            raise MalformedRecording(f"meta.ts must hold epoch seconds, not {type_name(at)}", line=line)
    return tuple(at if at is not None and is_time(at) else None for at in times)


def _entry(message: Object, index: int, at: float | None, line: int) -> RecordedMessage:
    where = f"messages[{index}]"
    role = message.get("role")
    if role == "assistant":
        events = _assistant(message, where, line)
    elif role == "tool":
        call = require_string(message.get("tool_call_id"), f"{where}.tool_call_id", line)
        content = require_content(message.get("content"), f"{where}.content", line)
        events = [{"type": "tool.result", "call_id": call, "content": content}]
    elif role in _ROLES:
        events = [{"type": _ROLES[role], "content": require_content(message.get("content"), f"{where}.content", line)}]
    else:
        raise MalformedRecording(f"{where}.role {role!r} is not a known role", line=line)
    # With ids, so that the log read back at the end can be compared event by event.
    numbered = (event | {"id": f"m{index}.{part}"} for part, event in enumerate(events))
    return RecordedMessage(adds=tuple(numbered), by_model=role == "assistant", at=at)


def _assistant(message: Object, where: str, line: int) -> list[dict[str, Json]]:
    content = message.get("content")
    calls = require_objects(message.get("tool_calls") or [], f"{where}.tool_calls", line)
    events: list[dict[str, Json]] = []
    if content or not calls:
        events.append({"type": "assistant.message", "content": require_content(content, f"{where}.content", line)})
    for index, call in enumerate(calls):
        at = f"{where}.tool_calls[{index}]"
        events.append(
            {
                "type": "tool.call",
                "call_id": require_string(call.get("id"), f"{at}.id", line),
                "tool": require_string(call.get("name"), f"{at}.name", line),
                "arguments": _arguments(call.get("arguments"), f"{at}.arguments", line),
            }
        )
    return events


def _arguments(value: Json, what: str, line: int) -> Json:
    if not isinstance(value, dict | str):
        raise MalformedRecording(f"{what} must be an object or JSON text, not {type_name(value)}", line=line)
    return value
