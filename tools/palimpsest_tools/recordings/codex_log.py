"""Codex's rollout files: JSON lines, each with a `timestamp`, a `type` and a `payload`.

The items of a response and the outputs of its tools are kept as Codex sent them with the next request: in the format of
OpenAI's Responses API, with the base instructions as system prompt. The screen's events repeat items and are left out,
except for the token counts. So is the history that replaced a compacted context, since the log holds all of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.log.events import ID_CHARS_MAX, Json, canonical_json
from palimpsest_tools.recordings.chat import native_steps
from palimpsest_tools.recordings.recording import (
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

FORMAT: Final = "openai-responses"
_ROLES: Final = frozenset({"developer", "system", "user", "assistant"})
_CALLS: Final = frozenset({"function_call", "custom_tool_call", "tool_search_call", "local_shell_call"})
_OUTPUTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "tool_search_output", "local_shell_call_output"}
)
_PROVIDER_ITEMS: Final = frozenset({"reasoning", "web_search_call", "image_generation_call"})
_NOT_SENT: Final = frozenset({"ghost_snapshot"})
_ABORTED: Final = "aborted"
"""The output that Codex sends for a call that was interrupted."""
_SCREEN: Final = frozenset(
    {"user_message", "agent_message", "agent_reasoning", "agent_reasoning_raw_content", "agent_reasoning_section_break"}
    | {"task_started", "task_complete", "turn_started", "turn_complete", "turn_aborted", "context_compacted"}
    | {"exec_command_begin", "exec_command_end", "mcp_tool_call_begin", "mcp_tool_call_end", "view_image_tool_call"}
    | {"patch_apply_begin", "patch_apply_end", "web_search_begin", "web_search_end", "item_started", "item_completed"}
    | {"entered_review_mode", "exited_review_mode", "plan_update", "turn_diff", "error", "warning", "stream_error"}
    | {"background_event", "thread_name_updated"}
)


def is_rollout(first: Object) -> bool:
    """Return whether a file with this object as its first line is a rollout of Codex."""
    return isinstance(first.get("type"), str) and isinstance(first.get("payload"), dict)


def recording(text: str, id: str) -> Recording:
    """Read a rollout as the session `id`. Raises NothingRecorded for one without a conversation."""
    rollout = _Rollout()
    for line in objects_of(text, rollout.tally):
        rollout.read(line)
    if not rollout.entries:
        raise NothingRecorded("no message of a conversation in it")
    entries = tuple(
        RecordedMessage((e.item,), e.by_model, e.at, e.continues, e.model, e.usage, e.whole) for e in rollout.entries
    )
    return Recording(
        id=id,
        format=FORMAT,
        system=rollout.instructions,
        tools=None,
        steps=native_steps(FORMAT, entries),
        notes=rollout.notes(),
        model=rollout.model,
        agent="codex",
    )


@dataclass(slots=True)
class _Entry:
    item: Mapping[str, Json]
    by_model: bool
    at: float | None
    continues: bool = False
    model: str | None = None
    whole: bool = True
    usage: RecordedUsage | None = None


@dataclass(slots=True)
class _Rollout:
    """The conversation of a rollout, read line by line.

    `responding` means that the next item of the model belongs to the same response as the last. `whole` is whether
    Codex sends all of the conversation; not after it compacted that or rolled a turn back.
    """

    tally: Tally = field(default_factory=Tally)
    entries: list[_Entry] = field(default_factory=list)
    instructions: str | None = None
    model: str | None = None
    responding: bool = False
    whole: bool = True
    compactions: int = 0
    rollbacks: int = 0
    aborted: int = 0
    orphans: int = 0
    open_calls: dict[str, str] = field(default_factory=dict)
    """The kinds of the calls without an output, by their ids."""
    _seen_meta: bool = False
    _total: Object = field(default_factory=dict)

    def read(self, line: Object) -> None:
        """Read a line."""
        kind, payload = line.get("type"), line.get("payload")
        read: Mapping[str, Callable[[Any, float | None], None]] = {
            "session_meta": self._session_meta,
            "turn_context": self._turn_context,
            "response_item": self._response_item,
            "event_msg": self._event,
            "compacted": self._compacted,
        }
        if isinstance(kind, str) and kind in read and isinstance(payload, dict):
            read[kind](payload, seconds(line.get("timestamp")))
        else:
            self.tally.add(kind if isinstance(kind, str) else "without a type")

    def notes(self) -> tuple[str, ...]:
        """Return the notes on repairs and omissions."""
        notes = list(compaction_notes(self.compactions))
        if self.rollbacks:
            notes.append(f"rolled back {counted(self.rollbacks, 'time')} by the user: the turns stay in the log")
        if self.aborted:
            notes.append(f"{self.aborted} tool call(s) without a recorded result, answered as aborted")
        if self.orphans:
            notes.append(f"{self.orphans} tool result(s) without a recorded call, left out")
        return (*notes, *self.tally.notes())

    def _session_meta(self, payload: Object, at: float | None) -> None:
        """Read the session's own line. Others after it are of the session that it was forked from."""
        if not self._seen_meta:
            base = payload.get("base_instructions")
            given = base.get("text") if isinstance(base, dict) else base or payload.get("instructions")
            self.instructions, self._seen_meta = text_at(given), True

    def _turn_context(self, payload: Object, at: float | None) -> None:
        mode = object_at(payload, "collaboration_mode", "settings")
        self.model = text_at(payload.get("model")) or text_at(mode.get("model")) or self.model

    def _compacted(self, payload: Object, at: float | None) -> None:
        self.compactions += 1
        self.whole = self.responding = False

    def _event(self, payload: Object, at: float | None) -> None:
        kind = payload.get("type")
        if kind == "token_count":
            self._token_count(object_at(payload, "info"))
        elif kind == "thread_rolled_back":
            self.rollbacks += 1
            self.whole = self.responding = False
        elif kind not in _SCREEN:
            self.tally.add(f"event_msg/{kind}")

    def _token_count(self, info: Object) -> None:
        """Add usage to the last response. A count that is repeated, as when limits change, is of no call."""
        total, last = object_at(info, "total_token_usage"), object_at(info, "last_token_usage")
        sent = tokens_at(last.get("input_tokens"))
        if not sent or (total and total == self._total):
            return
        self._total = total
        call = next((e for e in reversed(self.entries) if e.by_model and not e.continues), None)
        if call is not None and call.usage is None:
            read, write = last.get("cached_input_tokens"), last.get("cache_write_input_tokens")
            figures = (tokens_at(value) for value in (read, write, last.get("output_tokens")))
            call.usage = RecordedUsage(sent, *figures)
            self.responding = False

    def _response_item(self, payload: Object, at: float | None) -> None:
        item = {name: value for name, value in payload.items() if value is not None}
        kind = item.get("type")
        if kind == "message" and item.get("role") in _ROLES and _is_content(item.get("content")):
            if item["content"]:
                self._add(item, at, by_model=item["role"] == "assistant")
        elif kind in _CALLS | _OUTPUTS and _is_id(item.get("call_id")) and _is_complete(item):
            (self._call if kind in _CALLS else self._output)(item, at)
        elif kind in _PROVIDER_ITEMS or (kind in _CALLS | _OUTPUTS and "call_id" not in item):
            self._add(item, at, by_model=True)
        elif kind not in _NOT_SENT:
            self.tally.add(f"response_item/{kind}")

    def _call(self, item: dict[str, Json], at: float | None) -> None:
        if item["type"] == "custom_tool_call":
            item = {**item, "input": item.get("input", "")}
        self._add(item, at, by_model=True)
        self.open_calls[item["call_id"]] = item["type"]

    def _output(self, item: dict[str, Json], at: float | None) -> None:
        if self.open_calls.pop(item["call_id"], None) is None:
            self.orphans += 1
            return
        if item["type"] != "tool_search_output":
            item = {**item, "output": _output_text(item.get("output"))}
        self._add(item, at, by_model=False)

    def _add(self, item: Mapping[str, Json], at: float | None, *, by_model: bool) -> None:
        if by_model and not self.responding:
            self._answer_open_calls()
        self.entries.append(
            _Entry(item, by_model, at, by_model and self.responding, self.model if by_model else None, self.whole)
        )
        self.responding = by_model

    def _answer_open_calls(self) -> None:
        """Add an output for each call without one, as Codex does before the next request."""
        at = self.entries[-1].at if self.entries else None
        for call_id, kind in self.open_calls.items():
            if kind == "tool_search_call":
                output: dict[str, Json] = {"type": "tool_search_output", "execution": "client", "tools": []}
            else:
                own = kind == "custom_tool_call"
                output = {"type": f"{kind if own else 'function_call'}_output", "output": _ABORTED}
            self.entries.append(_Entry({**output, "call_id": call_id}, by_model=False, at=at))
        self.aborted += len(self.open_calls)
        self.open_calls.clear()


def _is_id(value: Json) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= ID_CHARS_MAX


def _is_content(value: Json) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(part, dict) and text_at(part.get("type")) for part in value)
    )


def _is_complete(item: Object) -> bool:
    """Return whether a call names its tool and has the input that its kind needs."""
    named = item["type"] not in ("function_call", "custom_tool_call") or text_at(item.get("name")) is not None
    return named and (item["type"] != "custom_tool_call" or isinstance(item.get("input", ""), str))


def _output_text(output: Json) -> str | list[Any]:
    """Return a tool's output as the API takes it: text or parts. Older logs hold an object with the text."""
    if isinstance(output, dict):
        output = output.get("content", output)
    if isinstance(output, list) and _is_content(output):
        return list_at(output)
    return output if isinstance(output, str) else "" if output is None else canonical_json(output)
