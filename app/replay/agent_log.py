"""A coding agent's JSONL session log: one line for each event, with messages in Anthropic's shape.

Left out are sidechains (conversations of sub-agents), meta lines, the agent's own compaction summaries and API error
notices (which no model wrote), and lines copied by a resume.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from app.core.log.events import Json
from app.replay.chat import check_message, native_steps
from app.replay.checks import numbered_lines, parse_json, require_object, require_string
from app.replay.recording import MalformedRecording, Object, RecordedMessage, Recording

_SKIP_FLAGS: Final = ("isSidechain", "isMeta", "isCompactSummary", "isApiErrorMessage")
_PAIR_FIELDS: Final = {"tool_use": "id", "tool_result": "tool_use_id"}
_NO_RESULT: Final = "(interrupted: no result was recorded)"


def is_agent_log(first: Object) -> bool:
    """Whether a file whose first line is this object is a coding agent's log."""
    return isinstance(first.get("type"), str) and "messages" not in first


@dataclass(slots=True)
class _Message:
    """A message that is built from lines; `key` is the assistant message's id."""

    role: str
    key: str | None
    at: float | None
    parts: list[Object] = field(default_factory=list)


def recording(text: str, id: str) -> Recording:
    """Read the session in a log. Raises MalformedRecording."""
    messages = _join_messages(_lines(text))
    answered, mended = _answer_dangling(messages)
    if not answered:
        raise MalformedRecording("no message of the main conversation in it")
    entries = tuple(
        RecordedMessage(adds=({"role": m.role, "content": m.parts},), by_model=m.role == "assistant", at=m.at)
        for m in answered
    )
    return Recording(
        id=id, format="anthropic", system=None, tools=None, steps=native_steps("anthropic", entries), notes=mended
    )


def _lines(text: str) -> Iterable[_Message]:
    seen: set[str] = set()
    for number, line in numbered_lines(text):
        entry = require_object(parse_json(line, first_line=number), "a line", number)
        kind = require_string(entry.get("type"), "type", number)
        if kind not in ("user", "assistant") or any(entry.get(flag) for flag in _SKIP_FLAGS):
            continue
        uuid = entry.get("uuid")
        if isinstance(uuid, str):
            if uuid in seen:
                continue
            seen.add(uuid)
        message = require_object(entry.get("message"), "message", number)
        check_message("anthropic", message, "message", number)
        if message["role"] != kind:
            raise MalformedRecording(f"a line of type {kind} holds a message of role {message['role']}", line=number)
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part["type"] in _PAIR_FIELDS:
                require_string(part.get(_PAIR_FIELDS[part["type"]]), f"the {part['type']}'s id", number)
        if content:
            key = message.get("id") if kind == "assistant" else None
            yield _Message(kind, key, _time(entry.get("timestamp"), number), list(parts))


def _join_messages(lines: Iterable[_Message]) -> list[_Message]:
    """Whole messages: parts of one assistant message are joined even if results came in between."""
    messages: list[_Message] = []
    for line in lines:
        spoken = next((m for m in reversed(messages) if m.role == "assistant"), None)
        if spoken is not None and line.key is not None and line.key == spoken.key:
            spoken.parts.extend(line.parts)
        elif messages and line.role == "user" and messages[-1].role == "user":
            messages[-1].parts.extend(line.parts)
            messages[-1].at = line.at if line.at is not None else messages[-1].at
        else:
            messages.append(line)
    return messages


def _answer_dangling(messages: list[_Message]) -> tuple[list[_Message], tuple[str, ...]]:
    """Give every call except those at the end a result directly behind it, and leave out results without a call.

    Returns the messages and notes on what was changed. Such calls were interrupted; the provider was sent a result for
    them too, since no request is legal without one.
    """
    out: list[_Message] = []
    dangling = orphans = 0
    open_calls: list[str] = []
    for message in messages:
        if message.role == "assistant":
            if open_calls:
                dangling += len(open_calls)
                out.append(_Message("user", None, message.at, [_interrupted(call) for call in open_calls]))
            open_calls = [part["id"] for part in message.parts if part["type"] == "tool_use"]
            out.append(message)
            continue
        results = {part["tool_use_id"]: part for part in message.parts if part["type"] == "tool_result"}
        orphans += sum(call not in open_calls for call in results)
        dangling += sum(call not in results for call in open_calls)
        others = [part for part in message.parts if part["type"] != "tool_result"]
        parts = [results.get(call) or _interrupted(call) for call in open_calls] + others
        open_calls = []
        if parts:
            out.append(_Message("user", None, message.at, parts))
    notes = []
    if dangling:
        notes.append(f"{dangling} tool call(s) without a recorded result, answered as interrupted")
    if orphans:
        notes.append(f"{orphans} tool result(s) without a recorded call, left out")
    return out, tuple(notes)


def _interrupted(call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": _NO_RESULT, "is_error": True}


def _time(value: Json, line: int) -> float | None:
    if value is None:
        return None
    try:
        return datetime.fromisoformat(require_string(value, "timestamp", line)).timestamp()
    except ValueError:
        raise MalformedRecording(f"timestamp {value!r} is not an RFC 3339 time", line=line) from None
