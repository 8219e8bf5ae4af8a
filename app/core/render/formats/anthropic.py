"""Anthropic's messages: `{"system"?: [...], "messages": [...], "tools"?}`.

Lossless except for what the provider would refuse, and for the client's own `cache_control`, which is removed: the
server places the cache markers itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.errors import InvalidMessage
from app.core.log.block import Block, Kind
from app.core.log.events import Json, Part, arguments_object
from app.core.log.parts import REASONING_PARTS
from app.core.render.formats.anthropic_parts import (
    NAME,
    message_parts,
    result_content,
    system_parts,
    text_part,
    unmarked,
)
from app.core.render.formats.layout import Breakpoint, Layout, Written
from app.core.render.formats.names import CallIds, tool_name
from app.core.render.formats.parts import BEGINNING, EMPTY, head_of, is_own, native, part_of, plain_text, without
from app.core.render.formats.reading import content_field, leading, message_object, text_field
from app.core.render.formats.tools import tool_names, write_tools

CALL_ID_CHARS_MAX: Final = 64
MARKER: Final[Mapping[str, Json]] = {"type": "ephemeral"}
HOUR_MARKER: Final[Mapping[str, Json]] = {"type": "ephemeral", "ttl": "1h"}


def read(messages: Sequence[Any]) -> list[dict[str, Json]]:
    """Read Anthropic messages into neutral events. Raises InvalidMessage."""
    events: list[dict[str, Json]] = []
    prompts = leading(messages, ("system",))
    for index, raw in enumerate(messages):
        message = message_object(raw, index)
        role = message.get("role")
        head = without(message, "role", "content")
        content = unmarked(content_field(message, index))
        if role == "system":
            kind = "system.prompt" if index < prompts else "system.message"
            events.append({"type": kind, "content": content, "native": native(NAME, head=head)})
        elif role in ("user", "assistant"):
            events += _read_message(str(role), content, head, index)
        else:
            raise InvalidMessage(f"unknown role {role!r}", index=index, field="role")
    return events


def _read_message(
    role: str, content: str | Sequence[Part] | None, head: Mapping[str, Json], index: int
) -> list[dict[str, Json]]:
    """One event for each run of ordinary content blocks, and one for each tool_use and tool_result."""
    kind = f"{role}.message"
    special, foreign = ("tool_use", "tool_result") if role == "assistant" else ("tool_result", "tool_use")
    if content is None or isinstance(content, str):
        return [{"type": kind, "content": content, "native": native(NAME, head=head)}]
    if role == "user":  # the provider wants results first
        content = sorted(content, key=lambda part: part.get("type") != special)
    events: list[dict[str, Json]] = []
    run: list[Part] = []
    for part in content:
        if part.get("type") == foreign:
            raise InvalidMessage(f"a {foreign} has no place in a message of the {role}", index=index, field="content")
        if part.get("type") == special:
            if run:
                events.append({"type": kind, "content": run})
                run = []
            events.append(_read_call(part, index) if role == "assistant" else _read_result(part, index))
        else:
            run.append(part)
    if run or not events:
        events.append({"type": kind, "content": run})
    for number, event in enumerate(events):
        extra: Json = event.pop("native_part", None)
        event["native"] = native(NAME, head=head if number == 0 else None, part=extra)
    return events


def _read_call(part: Part, index: int) -> dict[str, Json]:
    return {
        "type": "tool.call",
        "call_id": text_field(part, "id", index),
        "tool": text_field(part, "name", index),
        "arguments": part.get("input"),
        "native_part": without(part, "type", "id", "name", "input"),
    }


def _read_result(part: Part, index: int) -> dict[str, Json]:
    event: dict[str, Json] = {"type": "tool.result", "call_id": text_field(part, "tool_use_id", index)}
    if "content" in part:
        event["content"] = unmarked(content_field(part, index))
    if part.get("is_error") is True:
        event["is_error"] = True
    event["native_part"] = without(
        part, "type", "tool_use_id", "content", *(("is_error",) if part.get("is_error") is True else ())
    )
    return event


@dataclass(frozen=True, slots=True)
class ContentUnit:
    """One content block of the messages: its event's seq, and whether it `can_carry` a cache marker.

    Each tool use is a unit of its own; `render/breakpoints.py` counts a run of them as one.
    """

    seq: int
    can_carry: bool
    is_tool_use: bool
    ephemeral: bool


@dataclass(slots=True)
class _Message:
    role: str
    parts: list[Part] = field(default_factory=list)
    units: list[ContentUnit] = field(default_factory=list)
    as_text: bool = False
    fields: Mapping[str, Json] = field(default_factory=dict)
    has_calls: bool = False


def content_units(layout: Layout) -> tuple[ContentUnit, ...]:
    """The content blocks of the messages that `write` makes of this layout, in order, without the prefix."""
    return tuple(unit for message in _messages(layout) for unit in message.units)


def write(layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Written:
    """Write the request, with a cache marker on the last suitable content block of each breakpoint's event."""
    request: dict[str, Json] = {}
    tools = write_tools(layout.tools, "anthropic")
    system = [part for block in layout.system for part in system_parts(block)]
    messages = _messages(layout)
    placed = tuple(point for point in breakpoints if _mark(point, system, tools, messages))
    if system:
        request["system"] = system
    request["messages"] = [
        {
            "role": message.role,
            "content": message.parts[0]["text"] if message.as_text and len(message.parts) == 1 else message.parts,
            **message.fields,
        }
        for message in messages
    ]
    if tools:
        request["tools"] = tools
    return Written(request, placed)


def _marker(point: Breakpoint) -> Mapping[str, Json]:
    return HOUR_MARKER if point.hour else MARKER


def _mark(point: Breakpoint, system: list[Part], tools: list[dict[str, Json]], messages: Sequence[_Message]) -> bool:
    if point.kind == "system":
        target = system if system else tools
        if not target:
            return False
        target[-1] = {**target[-1], "cache_control": _marker(point)}
        return True
    for message in reversed(messages):
        for number in range(len(message.units) - 1, -1, -1):
            unit = message.units[number]
            if unit.seq == point.seq and unit.can_carry and not unit.ephemeral:
                message.parts[number] = {**message.parts[number], "cache_control": _marker(point)}
                message.as_text = False
                return True
    return False


def _messages(layout: Layout) -> list[_Message]:
    """The messages as the provider accepts them: the first the user's, none empty, none ending in reasoning.

    Reasoning at the end of a message is held back until the assistant's next content follows it.
    """
    writer = _Writer(tool_names(layout.tools))
    for block in layout.blocks:
        writer.add(block)
    messages = [message for message in writer.messages if message.parts]
    if not messages or messages[0].role != "user":
        messages.insert(0, _Message("user", [text_part(BEGINNING)], [ContentUnit(0, True, False, False)]))
    for message in messages:
        while message.parts and message.role == "assistant" and message.parts[-1].get("type") in REASONING_PARTS:
            message.parts.pop()
            message.units.pop()
    return [message for message in messages if message.parts]


class _Writer:
    """Builds the messages block by block."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.messages: list[_Message] = []
        self._ids = CallIds(CALL_ID_CHARS_MAX, unique=True)

    def add(self, block: Block) -> None:
        """Add the next block."""
        if block.kind is Kind.CALL:
            self._call(block)
        elif block.kind is Kind.RESULT:
            self._result(block)
        elif block.kind is Kind.ASSISTANT:
            self._say(block)
        elif block.kind is Kind.SYSTEM:
            if (head_of(block, NAME) or {}).get("role") == "system":
                self._put(block, "system", message_parts(block))
                return
            text = plain_text(block.content) or EMPTY
            self._put(block, "user", [text_part(f"<system-message>\n{text}\n</system-message>")])
        else:
            self._put(block, "user", message_parts(block))

    def _say(self, block: Block) -> None:
        self._put(block, "assistant", message_parts(block), joins=self._calls_are_open())

    def _call(self, block: Block) -> None:
        part: Part = {
            "type": "tool_use",
            "id": self._ids.call(block.call_id or "", block.seq, own=is_own(block, NAME)),
            "name": tool_name(block.tool, self._names),
            "input": arguments_object(block.arguments),
            **part_of(block, NAME),
        }
        self._put(block, "assistant", [part], joins=self._calls_are_open())
        self.messages[-1].has_calls = True

    def _calls_are_open(self) -> bool:
        """Whether the assistant's next content must go into its current message, whose calls are not answered yet."""
        return bool(self.messages) and self.messages[-1].role == "assistant" and self.messages[-1].has_calls

    def _result(self, block: Block) -> None:
        result: dict[str, Json] = {"type": "tool_result", "tool_use_id": self._ids.result(block.call_id or "")}
        result |= result_content(block)
        if block.is_error:
            result["is_error"] = True
        result |= part_of(block, NAME)
        self._put(block, "user", [result], joins=True)  # a user's message in progress holds this round's results

    def _put(self, block: Block, role: str, parts: Sequence[Part], *, joins: bool = False) -> None:
        """Add parts to the current message, or to a new one if the role changes or a message of this format begins."""
        head = head_of(block, NAME)
        current = self.messages[-1] if self.messages else None
        if current is None or current.role != role or (head is not None and not joins):
            current = _Message(role, fields=head or {})
            self.messages.append(current)
            current.as_text = head is not None and isinstance(block.content, str) and block.kind is not Kind.RESULT
        else:
            current.as_text = False
        for part in parts:
            kind = part.get("type")
            carries = kind not in REASONING_PARTS
            current.parts.append(part)
            current.units.append(ContentUnit(block.seq, carries, kind == "tool_use", block.ephemeral))
