"""Gemini CLI's chat logs: one JSON object with `messages`, or in newer versions JSON lines with a message each.

Messages become contents of Gemini's API. A tool call is logged together with its result, which Gemini CLI sent with the
next request. Thoughts are left out, since they were not sent back, and so are the notices of the screen. In JSON lines,
a message that is logged again replaces the earlier one, `$rewindTo` takes back messages, and `$set` may replace the
history: what a compaction put in place of messages is left out, since the log holds these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.log.events import ID_CHARS_MAX, Json
from palimpsest_tools.recordings.chat import native_steps
from palimpsest_tools.recordings.checks import parse_json
from palimpsest_tools.recordings.recording import (
    MalformedRecording,
    NothingRecorded,
    Object,
    RecordedMessage,
    RecordedUsage,
    Recording,
)
from palimpsest_tools.recordings.tally import (
    Tally,
    compaction_notes,
    counted,
    list_at,
    object_at,
    objects_of,
    seconds,
    text_at,
    tokens_at,
)

FORMAT: Final = "gemini"
_SPOKEN: Final = ("user", "gemini")
_SCREEN: Final = ("info", "error", "warning")
_UNSIGNED: Final = {"thoughtSignature": "skip_thought_signature_validator"}
"""The signature that Gemini CLI gives to a call whose own one it does not have: the log has none."""
_NO_RESULT: Final = "(interrupted: no result was recorded)"


def is_chat(document: Json) -> bool:
    """Return whether an object is a chat of Gemini CLI, or the first line of one."""
    return (
        isinstance(document, dict)
        and text_at(document.get("sessionId")) is not None
        and ("projectHash" in document or "startTime" in document)
        and "type" not in document
    )


def recording(text: str, id: str) -> Recording:
    """Read a chat as the session `id`. Raises NothingRecorded for one without a conversation."""
    whole = _whole_chat(text)
    tally = Tally("line" if whole is None else "message")
    history = _History(tally)
    for record in objects_of(text, tally) if whole is None else (whole,):
        history.read(record)
    entries = tuple(_entries(history, tally))
    if not entries:
        raise NothingRecorded("no message of a conversation in it")
    messages = list(history.messages.values())
    missing = sum(_result_of(call) is None for message in messages[:-1] for call in _calls(message))
    notes = list(compaction_notes(history.compactions))
    if history.rewound:
        notes.append(f"{counted(history.rewound, 'message')} taken back by the user, left out")
    if missing:
        notes.append(f"{missing} tool call(s) without a recorded result, answered as interrupted")
    return Recording(
        id=id,
        format=FORMAT,
        system=None,
        tools=None,
        steps=native_steps(FORMAT, entries),
        notes=(*notes, *tally.notes()),
        model=next((entry.model for entry in reversed(entries) if entry.model), None),
        agent="gemini",
    )


def _whole_chat(text: str) -> Object | None:
    """Return the text's only JSON object; None for JSON lines."""
    try:
        whole = parse_json(text)
    except MalformedRecording:
        return None
    return whole if isinstance(whole, dict) else None


@dataclass(slots=True)
class _History:
    """The messages of a chat by their ids, in order. Those in `compacted` were sent when the history was incomplete."""

    tally: Tally
    messages: dict[str, Object] = field(default_factory=dict)
    compacted: set[str] = field(default_factory=set)
    compactions: int = 0
    rewound: int = 0

    def read(self, record: Object) -> None:
        """Read the object of a line."""
        if isinstance(rewind := record.get("$rewindTo"), str):
            self._rewind(rewind)
        elif isinstance(changes := record.get("$set"), dict):
            if isinstance(changes.get("messages"), list):
                self._replace([one for one in changes["messages"] if isinstance(one, dict)])
        elif is_chat(record):
            for message in list_at(record.get("messages")):
                self._add(message)
        else:
            self._add(record)

    def _add(self, message: Json) -> None:
        if not isinstance(message, dict) or message.get("type") not in _SPOKEN:
            if kind := _unknown_kind(message):
                self.tally.add(kind)
            return
        id = text_at(message.get("id")) or f"#{len(self.messages)}"
        if id not in self.messages and self.compactions:
            self.compacted.add(id)
        self.messages[id] = message

    def _rewind(self, id: str) -> None:
        if id not in self.messages:
            self.tally.add("$rewindTo")
            return
        ids = list(self.messages)
        for taken in ids[ids.index(id) :]:
            del self.messages[taken]
            self.rewound += 1

    def _replace(self, messages: Sequence[Object]) -> None:
        """Take the new messages at the end of a replaced history. Others that are new are of a compaction."""
        ids = [text_at(message.get("id")) or "" for message in messages]
        known = [index for index, id in enumerate(ids) if id in self.messages]
        first_new = known[-1] + 1 if known else len(ids) if self.messages else 0
        kept = set(ids[:first_new])
        if self.messages and (not kept >= self.messages.keys() or not kept <= self.messages.keys()):
            self.compactions += 1
        for message in messages[first_new:]:
            self._add(message)


def _unknown_kind(message: Json) -> str | None:
    """Return the kind of a record that is no message; None for a notice of the screen."""
    if not isinstance(message, dict):
        return "no message"
    kind = message.get("type")
    if isinstance(kind, str):
        return None if kind in _SCREEN else f"message/{kind}"
    return next((name for name in message if name.startswith("$")), "without a type")


def _entries(history: _History, tally: Tally) -> Iterator[RecordedMessage]:
    waiting: set[Json] = set()  # calls in a content; newer versions log the results of all others a second time
    newest = next(reversed(history.messages), None)
    for id, message in history.messages.items():
        at = seconds(message.get("timestamp"))
        parts = _parts(message.get("content"), tally)
        if message["type"] == "user":
            parts = [
                p for p in parts if "functionResponse" not in p or object_at(p, "functionResponse").get("id") in waiting
            ]
            if parts:
                yield RecordedMessage(({"role": "user", "parts": parts},), by_model=False, at=at)
            continue
        calls = _calls(message)
        parts = _model_parts(parts, calls)
        waiting |= {object_at(part, "functionCall").get("id") for part in parts} - {
            None,
            *(call["id"] for call in calls),
        }
        if parts:
            yield RecordedMessage(
                ({"role": "model", "parts": parts},),
                by_model=True,
                at=at,
                model=text_at(message.get("model")),
                usage=_usage(object_at(message, "tokens")),
                whole=id not in history.compacted,
            )
        results = _results(calls, interrupted=id != newest)
        if results:
            times = [done for call in calls if (done := seconds(call.get("timestamp"))) is not None]
            yield RecordedMessage(({"role": "user", "parts": results},), by_model=False, at=max(times, default=at))


def _results(calls: Sequence[Object], *, interrupted: bool) -> list[Mapping[str, Any]]:
    """Return the parts of the calls' results; a call without one was `interrupted`, or is still running."""
    missing = [[_response(call, error=_NO_RESULT)] if interrupted else [] for call in calls]
    return [part for call, none in zip(calls, missing, strict=True) for part in _result_of(call) or none]


def _parts(content: Json, tally: Tally) -> list[dict[str, Any]]:
    """Return content, which may be a text, a part or a list of both, as parts."""
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            parts += [{"text": part}] if part else []
        elif isinstance(part, dict):
            parts.append({name: value for name, value in part.items() if value is not None})
        elif part is not None:
            tally.add("part")
    return parts


def _calls(message: Object) -> list[Object]:
    """Return the tool calls of a message that have an id and a name."""
    return [
        call
        for call in list_at(message.get("toolCalls"))
        if isinstance(call, dict) and _is_id(call.get("id")) and text_at(call.get("name"))
    ]


def _is_id(value: Json) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= ID_CHARS_MAX


def _model_parts(parts: Sequence[dict[str, Any]], calls: Sequence[Object]) -> list[dict[str, Any]]:
    """Return the parts that a message of the model had when it was sent back: texts, then calls, without thoughts."""
    in_content = {
        call["id"]: part
        for part in parts
        if _is_id((call := object_at(part, "functionCall")).get("id")) and text_at(call.get("name"))
    }
    shown = [part for part in parts if part.get("thought") is not True and "functionCall" not in part]
    shown += [part for id, part in in_content.items() if id not in {call["id"] for call in calls}]
    for index, call in enumerate(calls):
        args = call.get("args")
        asked = {"id": call["id"], "name": call["name"], "args": args if isinstance(args, dict) else {}}
        shown.append(in_content.get(call["id"]) or {"functionCall": asked, **({} if index else _UNSIGNED)})
    return shown


def _result_of(call: Object) -> list[Mapping[str, Any]] | None:
    """Return the parts of a call's result, the response first; None if none is recorded."""
    result = call.get("result")
    if isinstance(result, str):
        return [_response(call, output=result)]
    parts = [part for part in (result if isinstance(result, list) else [result]) if isinstance(part, dict)]
    ours = next((part for part in parts if "functionResponse" in part), None)
    if ours is None:
        return None
    inner = {**object_at(ours, "functionResponse"), "id": call["id"], "name": call["name"]}
    inner["response"] = object_at(inner, "response")
    others = [part for part in parts if "functionResponse" not in part]
    return [{**ours, "functionResponse": inner}, *others]


def _response(call: Object, **response: str) -> Mapping[str, Any]:
    return {"functionResponse": {"id": call["id"], "name": call["name"], "response": response}}


def _usage(tokens: Object) -> RecordedUsage | None:
    """Return a message's usage; the provider bills thoughts as output."""
    sent = tokens_at(tokens.get("input"))
    if not sent:
        return None
    output = [count for name in ("output", "thoughts") if (count := tokens_at(tokens.get(name))) is not None]
    return RecordedUsage(sent, tokens_at(tokens.get("cached")), None, sum(output) if output else None)
