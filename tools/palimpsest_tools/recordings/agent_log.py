"""Coding agents' JSONL session logs: one line for each event, with messages in Anthropic's format.

Conversations of sub-agents (sidechains) become separate sessions; their lines are in the parent session's log or in a
separate file. Meta lines, the agent's compaction summaries, API error notices (which no model wrote) and lines copied
by a resume are left out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.lexicon.times import parse_time, to_seconds
from app.core.log.events import Json
from palimpsest_tools.recordings.chat import check_message, native_steps
from palimpsest_tools.recordings.checks import numbered_lines, parse_json, require_object, require_string
from palimpsest_tools.recordings.recording import (
    MalformedRecording,
    NothingRecorded,
    Object,
    RecordedMessage,
    RecordedUsage,
    Recording,
)
from palimpsest_tools.recordings.tally import compaction_notes, object_at, tokens_at

_SKIP_FLAGS: Final = ("isMeta", "isCompactSummary", "isApiErrorMessage")
_PAIR_FIELDS: Final = {"tool_use": "id", "tool_result": "tool_use_id"}
_NO_RESULT: Final = "(interrupted: no result was recorded)"


def is_agent_log(first: Object) -> bool:
    """Return whether a file with this object as its first line is a coding agent's log."""
    return isinstance(first.get("type"), str) and "messages" not in first


@dataclass(slots=True)
class _Message:
    """A message, built from several lines. `key` is an assistant message's id, `model` the model that wrote it.

    `usage` and `whole` are of the call that it answers.
    """

    role: str
    key: str | None
    at: float | None
    model: str | None = None
    parts: list[Object] = field(default_factory=list)
    usage: RecordedUsage | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class _Line:
    """A line with a message; `agent` names the sub-agent of its conversation, None for the main one."""

    message: _Message
    agent: str | None


def recordings(text: str, id: str) -> tuple[Recording, ...]:
    """Read the sessions in a log: the main one as `id`, then each sub-agent's as `id`.agent-X.

    A log with the conversation of a single sub-agent is that sub-agent's own and gets the id `id`. Raises
    MalformedRecording; NothingRecorded for a log without a conversation.
    """
    conversations: dict[str | None, list[_Message]] = {}
    compactions: Counter[str | None] = Counter()
    for line in _lines(text, compactions):
        conversations.setdefault(line.agent, []).append(line.message)
    read = {agent: _answer_dangling(_join_messages(messages)) for agent, messages in conversations.items()}
    read = {agent: found for agent, found in read.items() if found[0]}
    if not read:
        raise NothingRecorded("no message of a conversation in it")
    alone = len(read) == 1
    ordered = sorted(read, key=lambda agent: agent is not None)
    return tuple(
        _recording(
            id if agent is None or alone else f"{id}.agent-{agent}",
            read[agent][0],
            (*compaction_notes(compactions[agent]), *read[agent][1]),
        )
        for agent in ordered
    )


def started_by(text: str) -> str | None:
    """Return the parent session's id from the first line of a sub-agent's own log; None if the line has none."""
    _, first = next(numbered_lines(text), (0, "null"))
    entry = parse_json(first)
    session = entry.get("sessionId") if isinstance(entry, dict) and entry.get("isSidechain") else None
    return session if isinstance(session, str) and session else None


def _recording(id: str, messages: Sequence[_Message], notes: tuple[str, ...]) -> Recording:
    entries = tuple(
        RecordedMessage(
            adds=({"role": m.role, "content": m.parts},),
            by_model=m.role == "assistant",
            at=m.at,
            model=m.model,
            usage=m.usage,
            whole=m.whole,
        )
        for m in messages
    )
    return Recording(
        id=id,
        format="anthropic",
        system=None,
        tools=None,
        steps=native_steps("anthropic", entries),
        notes=notes,
        model=next((m.model for m in reversed(messages) if m.model), None),
        agent="claude",
    )


def _lines(text: str, compactions: Counter[str | None]) -> Iterator[_Line]:
    """Yield the lines with messages, and count the agent's own compactions of each conversation."""
    seen: set[str] = set()
    summaries: set[Json] = set()
    agents = _Agents()
    for number, line in numbered_lines(text):
        entry = require_object(parse_json(line, first_line=number), "a line", number)
        kind = require_string(entry.get("type"), "type", number)
        if kind not in ("user", "assistant") or any(entry.get(flag) for flag in _SKIP_FLAGS):
            if kind == "user" and entry.get("isCompactSummary") and entry.get("uuid") not in summaries:
                summaries.add(entry.get("uuid") or number)
                compactions[agents.of(entry, kind) if entry.get("isSidechain") else None] += 1
            continue
        uuid = entry.get("uuid")
        if isinstance(uuid, str):
            if uuid in seen:
                continue
            seen.add(uuid)
        agent = agents.of(entry, kind) if entry.get("isSidechain") else None
        message = _message(entry, kind, number)
        message.whole = not compactions[agent]
        if message.parts:
            yield _Line(message, agent)


class _Agents:
    """Assigns lines to sub-agents by the sub-agent's id, or in older logs, which have none, by each line's parent."""

    def __init__(self) -> None:
        self._of_line: dict[Json, str] = {}
        self._newest = 0

    def of(self, entry: Object, kind: str) -> str:
        """Return the name of a line's sub-agent."""
        named = entry.get("agentId")
        if isinstance(named, str) and named:
            return named
        agent = self._of_line.get(entry.get("parentUuid"))
        if agent is None:
            self._newest += kind == "user" or not self._newest
            agent = str(self._newest)
        if entry.get("uuid") is not None:
            self._of_line[entry["uuid"]] = agent
        return agent


def _message(entry: Object, kind: str, number: int) -> _Message:
    message = require_object(entry.get("message"), "message", number)
    check_message("anthropic", message, "message", number)
    if message["role"] != kind:
        raise MalformedRecording(f"a line of type {kind} holds a message of role {message['role']}", line=number)
    content = message["content"]
    parts = ([{"type": "text", "text": content}] if content else []) if isinstance(content, str) else list(content)
    for part in parts:
        if part["type"] in _PAIR_FIELDS:
            require_string(part.get(_PAIR_FIELDS[part["type"]]), f"the {part['type']}'s id", number)
    by_model, model = kind == "assistant", message.get("model")
    return _Message(
        role=kind,
        key=message.get("id") if by_model else None,
        at=_time(entry.get("timestamp"), number),
        model=model if by_model and isinstance(model, str) and not model.startswith("<") else None,
        parts=parts,
        usage=_usage(object_at(message, "usage")) if by_model else None,
    )


def _usage(usage: Object) -> RecordedUsage | None:
    """Return a message's usage. Anthropic's input excludes that of the cache."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    fresh, read, write, output = (tokens_at(usage.get(name)) for name in names)
    sent = (fresh or 0) + (read or 0) + (write or 0)
    hour = tokens_at(object_at(usage, "cache_creation").get("ephemeral_1h_input_tokens"))
    return RecordedUsage(sent, read, write, output, hour) if sent else None


def _join_messages(lines: Iterable[_Message]) -> list[_Message]:
    """Join lines into messages. The parts of an assistant message are joined even with results between them."""
    messages: list[_Message] = []
    for line in lines:
        latest = next((m for m in reversed(messages) if m.role == "assistant"), None)
        if latest is not None and line.key is not None and line.key == latest.key:
            latest.parts.extend(line.parts)
            latest.usage = line.usage or latest.usage  # the last line has all of the output
        elif messages and line.role == "user" and messages[-1].role == "user":
            messages[-1].parts.extend(line.parts)
            messages[-1].at = line.at if line.at is not None else messages[-1].at
        else:
            messages.append(line)
    return messages


def _answer_dangling(messages: list[_Message]) -> tuple[list[_Message], tuple[str, ...]]:
    """Give every call except those at the end a result directly after it, and leave out results without a call.

    Returns the messages, and notes on the changes. A call without a result was interrupted; the provider was sent a
    result for it, too, since a request without one is invalid.
    """
    out: list[_Message] = []
    dangling = orphans = 0
    open_calls: list[str] = []
    for message in messages:
        if message.role == "assistant":
            if open_calls:
                dangling += len(open_calls)
                out.append(_Message("user", None, message.at, parts=[_interrupted(call) for call in open_calls]))
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
            out.append(_Message("user", None, message.at, parts=parts))
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
        return to_seconds(parse_time(require_string(value, "timestamp", line)))
    except ValueError:
        raise MalformedRecording(f"timestamp {value!r} is not an RFC 3339 time", line=line) from None
