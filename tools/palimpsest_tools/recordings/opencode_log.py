"""opencode's export: one JSON object with the session's `info` and its `messages`, each with `info` and `parts`.

The parts become events. A step is one call of the model: its texts, reasoning and tool calls, then their results, which
opencode sent with the next request. A result that opencode cleared later is kept, since the export still has it. Parts
that were not sent are left out, and so are the question and the answer of a compaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.log.events import ID_CHARS_MAX, NAME_CHARS_MAX, Json
from palimpsest_tools.recordings.recording import (
    AppendEvents,
    NothingRecorded,
    Object,
    RecordedMessage,
    RecordedUsage,
    Recording,
    weave,
)
from palimpsest_tools.recordings.tally import (
    Tally,
    compaction_notes,
    counted,
    list_at,
    object_at,
    seconds_of_milliseconds,
    text_at,
    tokens_at,
)

_NOT_SENT: Final = frozenset({"step-start", "step-finish", "patch", "snapshot", "agent", "retry"})
_READ_AS_TEXT: Final = frozenset({"text/plain", "application/x-directory"})
"""Types of files that opencode sends as text parts of their own."""
_SUBTASK: Final = "The following tool was executed by the user"
"""The text that opencode sends for a command that the user gave to a sub-agent."""
_INTERRUPTED: Final = "[Tool execution was interrupted]"
"""The result that opencode sends for a call that was interrupted."""
_FORMATS: Final = {
    "anthropic": "anthropic",
    "openai": "openai-responses",
    "google": "gemini",
    "google-vertex": "gemini",
}
"""Formats of the providers that do not take OpenAI's chat messages."""


def is_export(document: Json) -> bool:
    """Return whether an object is an export of opencode."""
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        return False
    return isinstance(document.get("info"), dict) and all(object_at(one, "info") for one in document["messages"])


def recording(document: Object, id: str) -> Recording:
    """Read an export; its session has the id in it, else `id`. Raises NothingRecorded without a conversation."""
    session = _Session(cleared=_first_clearing(document["messages"]))
    entries = tuple(session.entries(document["messages"]))
    if not entries:
        raise NothingRecorded("no message of a conversation in it")
    return Recording(
        id=text_at(object_at(document, "info").get("id")) or id,
        format=_FORMATS.get(session.provider or "", "openai"),
        system=None,
        tools=None,
        steps=weave(entries, AppendEvents),
        notes=session.notes(),
        model=session.model,
        agent="opencode",
    )


def _first_clearing(messages: Sequence[Object]) -> float | None:
    """Return the time from which requests lacked a result that opencode had cleared; None if it cleared none."""
    parts = (part for message in messages for part in list_at(message.get("parts")))
    times = (seconds_of_milliseconds(object_at(part, "state", "time").get("compacted")) for part in parts)
    return min((at for at in times if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Event:
    body: Mapping[str, Json]
    at: float | None


@dataclass(slots=True)
class _Session:
    """The conversation of an export, read message by message."""

    cleared: float | None
    tally: Tally = field(default_factory=lambda: Tally("part"))
    model: str | None = None
    provider: str | None = None
    compactions: int = 0
    failures: int = 0
    interrupted: int = 0

    def entries(self, messages: Sequence[Object]) -> Iterator[RecordedMessage]:
        """Yield the messages of the conversation, with ids for their events."""
        for index, message in enumerate(messages):
            number = 0
            for entry in self._message(message, is_last=index == len(messages) - 1):
                yield RecordedMessage(
                    tuple({**event, "id": f"m{index}.{number + n}"} for n, event in enumerate(entry.adds)),
                    *(entry.by_model, entry.at, entry.continues, entry.model, entry.usage, entry.whole),
                )
                number += len(entry.adds)

    def notes(self) -> tuple[str, ...]:
        """Return the notes on repairs and omissions."""
        notes = list(compaction_notes(self.compactions))
        if self.cleared is not None:
            notes.append("some results were cleared by the agent itself; the log holds them")
        if self.failures:
            notes.append(f"{counted(self.failures, 'response')} that failed, left out")
        if self.interrupted:
            notes.append(f"{self.interrupted} tool call(s) without a recorded result, answered as interrupted")
        return (*notes, *self.tally.notes())

    def _message(self, message: Object, *, is_last: bool) -> Iterator[RecordedMessage]:
        info = object_at(message, "info")
        parts = [part for part in list_at(message.get("parts")) if isinstance(part, dict)]
        at = seconds_of_milliseconds(object_at(info, "time").get("created"))
        if info.get("role") == "user":
            content = [] if any(part.get("type") == "compaction" for part in parts) else self._user_content(parts)
            if content:
                yield RecordedMessage(({"type": "user.message", "content": content},), by_model=False, at=at)
        elif info.get("role") != "assistant":
            self.tally.add(f"message/{info.get('role')}")
        elif _is_failed(info, parts):
            self.failures += 1
        elif info.get("summary") is True:
            self.compactions += 1
        else:
            self.model = text_at(info.get("modelID")) or self.model
            self.provider = text_at(info.get("providerID")) or self.provider
            steps = _steps(parts)
            for step in steps:
                yield from self._step(step, info, at, alone=len(steps) == 1, is_last=is_last)

    def _user_content(self, parts: Sequence[Object]) -> list[Mapping[str, Json]]:
        content: list[Mapping[str, Json]] = []
        for part in parts:
            match part.get("type"):
                case "text" if isinstance(part.get("text"), str):
                    if part["text"] and not part.get("ignored"):
                        content.append({"type": "text", "text": part["text"]})
                case "file":
                    content += [] if part.get("mime") in _READ_AS_TEXT else [_file(part)]
                case "subtask":
                    content.append({"type": "text", "text": _SUBTASK})
                case kind if kind not in _NOT_SENT:
                    self.tally.add(f"part/{kind}")
        return content

    def _step(
        self, parts: Sequence[Object], info: Object, at: float | None, *, alone: bool, is_last: bool
    ) -> Iterator[RecordedMessage]:
        """Yield a model's response and the results of its calls."""
        said: list[_Event] = []
        results: list[_Event] = []
        content: list[Mapping[str, Json]] = []
        time = at

        def settle() -> None:
            if content:
                said.append(_Event({"type": "assistant.message", "content": list(content)}, time))
                content.clear()

        for part in parts:
            kind = part.get("type")
            if kind in ("text", "reasoning") and isinstance(part.get("text"), str):
                content += [{"type": kind, "text": part["text"]}] if part["text"] else []
                time = seconds_of_milliseconds(object_at(part, "time").get("end")) or time
            elif kind == "tool" and _is_named(part):
                settle()
                said.append(_call(part, at))
                results += self._result(part, at, is_last=is_last)
            elif kind == "file":
                content.append(_file(part))
            elif kind not in _NOT_SENT:
                self.tally.add(f"part/{kind}")
        settle()
        spent = next((object_at(part, "tokens") for part in parts if part.get("type") == "step-finish"), {})
        usage = _usage(spent or (object_at(info, "tokens") if alone else {}))
        whole = not self.compactions and (self.cleared is None or at is None or at < self.cleared)
        for number, event in enumerate(said):
            yield RecordedMessage((event.body,), True, event.at, number > 0, self.model, usage, whole)
        for event in results:
            yield RecordedMessage((event.body,), by_model=False, at=event.at)

    def _result(self, part: Object, at: float | None, *, is_last: bool) -> list[_Event]:
        """Return the result of a call; none if it is still running at the end of the export."""
        state = object_at(part, "state")
        done = seconds_of_milliseconds(object_at(state, "time").get("end")) or at
        body: dict[str, Json] = {"type": "tool.result", "call_id": part["callID"]}
        if state.get("status") == "completed":
            output = state.get("output") if isinstance(state.get("output"), str) else ""
            files = [_file(one) for one in list_at(state.get("attachments")) if isinstance(one, dict)]
            return [_Event(body | {"content": [{"type": "text", "text": output}, *files] if files else output}, done)]
        if state.get("status") == "error":
            return [_Event(body | {"content": text_at(state.get("error")) or "", "is_error": True}, done)]
        if is_last:
            return []
        self.interrupted += 1
        return [_Event(body | {"content": _INTERRUPTED, "is_error": True}, done)]


def _steps(parts: Sequence[Object]) -> list[Sequence[Object]]:
    """Divide the parts of a response at the beginning of each step."""
    starts = [index for index, part in enumerate(parts) if part.get("type") == "step-start" and index]
    return [parts[start:end] for start, end in zip([0, *starts], [*starts, len(parts)], strict=True)]


def _is_failed(info: Object, parts: Sequence[Object]) -> bool:
    """Return whether a response failed, so that opencode did not send it back; one that was only stopped was sent."""
    error = object_at(info, "error")
    stopped = error.get("name") == "MessageAbortedError"
    return bool(error) and not (stopped and any(part.get("type") not in ("step-start", "reasoning") for part in parts))


def _is_named(part: Object) -> bool:
    ids: tuple[tuple[str, int], ...] = (("callID", ID_CHARS_MAX), ("tool", NAME_CHARS_MAX))
    return all((text := text_at(part.get(name))) is not None and len(text) <= limit for name, limit in ids)


def _call(part: Object, at: float | None) -> _Event:
    state = object_at(part, "state")
    body = {"call_id": part["callID"], "tool": part["tool"], "arguments": object_at(state, "input")}
    return _Event({"type": "tool.call", **body}, seconds_of_milliseconds(object_at(state, "time").get("start")) or at)


def _file(part: Object) -> Mapping[str, Any]:
    """Return an image or a file as a part of an event."""
    url, name = str(part.get("url") or ""), text_at(part.get("filename")) or "file"
    if str(part.get("mime")).startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if url.startswith("data:"):
        return {"type": "file", "file": {"filename": name, "file_data": url}}
    return {"type": "text", "text": f"[{part.get('mime') or 'file'}: {name}]"}


def _usage(tokens: Object) -> RecordedUsage | None:
    """Return a step's usage. opencode's input excludes the cache; its output may exclude the reasoning."""
    cache = object_at(tokens, "cache")
    figures = (tokens.get("input"), cache.get("read"), cache.get("write"), tokens.get("output"), tokens.get("total"))
    fresh, read, write, output, total = map(tokens_at, figures)
    sent = (fresh or 0) + (read or 0) + (write or 0)
    if not sent:
        return None
    return RecordedUsage(sent, read, write, max(total - sent, output or 0) if total else output)
