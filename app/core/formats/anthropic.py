"""Anthropic's messages: `{"system"?: [...], "messages": [...], "tools"?}`.

Lossless but for the client's own `cache_control`, which is taken off: where the cache markers stand is decided here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.errors import InvalidMessage
from app.core.events import Json, Part
from app.core.formats.names import CallIds, tool_name
from app.core.formats.parts import (
    EMPTY,
    NO_OUTPUT,
    REASONING,
    Image,
    Piece,
    Text,
    arguments_object,
    head_of,
    native,
    own,
    part_of,
    pieces,
    plain_text,
    without,
)
from app.core.formats.reading import content_field, message_object, text_field
from app.core.formats.tools import write_tools
from app.core.render.layout import Block, Breakpoint, Kind, Layout, Written

NAME: Final = "anthropic"
CALL_ID_CHARS_MAX: Final = 64
BEGINNING: Final = "(The conversation begins.)"
MARKER: Final[Mapping[str, Json]] = {"type": "ephemeral"}


def read(messages: Sequence[Any]) -> list[dict[str, Json]]:
    """Neutral events of Anthropic messages. Raises InvalidMessage."""
    events: list[dict[str, Json]] = []
    for index, raw in enumerate(messages):
        message = message_object(raw, index)
        role = message.get("role")
        head = without(message, "role", "content")
        content = _unmarked(content_field(message, index))
        if role == "system":
            kind = "system.prompt" if index == 0 else "system.message"
            events.append({"type": kind, "content": content, "native": native(NAME, head=head)})
        elif role in ("user", "assistant"):
            events += _read_message(str(role), content, head, index)
        else:
            raise InvalidMessage(f"unknown role {role!r}", index=index, field="role")
    return events


def _read_message(
    role: str, content: str | Sequence[Part], head: Mapping[str, Json], index: int
) -> list[dict[str, Json]]:
    """Runs of ordinary blocks become one event each, every tool_use and tool_result one of its own."""
    kind = f"{role}.message"
    special = "tool_use" if role == "assistant" else "tool_result"
    if isinstance(content, str):
        return [{"type": kind, "content": content, "native": native(NAME, head=head)}]
    if role == "user":  # the provider wants results first
        content = sorted(content, key=lambda part: part["type"] != special)
    events: list[dict[str, Json]] = []
    run: list[Part] = []
    for part in content:
        if part["type"] == special:
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
    arguments = part.get("input", {})
    if not isinstance(arguments, Mapping):
        raise InvalidMessage("input must be an object", index=index, field="input")
    return {
        "type": "tool.call",
        "call_id": text_field(part, "id", index),
        "tool": text_field(part, "name", index),
        "arguments": arguments,
        "native_part": without(part, "type", "id", "name", "input"),
    }


def _read_result(part: Part, index: int) -> dict[str, Json]:
    event: dict[str, Json] = {"type": "tool.result", "call_id": text_field(part, "tool_use_id", index)}
    if "content" in part:
        event["content"] = _unmarked(content_field(part, index))
    if part.get("is_error") is True:
        event["is_error"] = True
    event["native_part"] = without(
        part, "type", "tool_use_id", "content", *(("is_error",) if part.get("is_error") is True else ())
    )
    return event


def _unmarked(content: str | Sequence[Part]) -> str | list[Part]:
    if isinstance(content, str):
        return content
    return [without(part, "cache_control") for part in content]


@dataclass(frozen=True, slots=True)
class Unit:
    """One content block of the messages: whose it is, and whether a cache marker can stand on it."""

    seq: int
    can_carry: bool
    is_tool_use: bool
    ephemeral: bool


@dataclass(slots=True)
class _Message:
    role: str
    parts: list[Part] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    as_text: bool = False
    fields: Mapping[str, Json] = field(default_factory=dict)
    has_calls: bool = False
    only_results: bool = True


def content_units(layout: Layout) -> tuple[Unit, ...]:
    """The content blocks of the messages that `write` makes of this layout, in order (not those of the prefix)."""
    return tuple(unit for message in _messages(layout) for unit in message.units)


def write(layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Written:
    """The request, with a cache marker on the last content block of each breakpoint's event that can carry one."""
    request: dict[str, Json] = {}
    tools = write_tools(layout.tools, "anthropic")
    system = _system(layout.system) if layout.system else []
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


def _mark(point: Breakpoint, system: list[Part], tools: list[dict[str, Json]], messages: Sequence[_Message]) -> bool:
    if point.kind == "system":
        target = system if system else tools
        if not target:
            return False
        target[-1] = {**target[-1], "cache_control": MARKER}
        return True
    for message in reversed(messages):
        for number in range(len(message.units) - 1, -1, -1):
            unit = message.units[number]
            if unit.seq == point.seq and unit.can_carry and not unit.ephemeral:
                message.parts[number] = {**message.parts[number], "cache_control": MARKER}
                message.as_text = False
                return True
    return False


def _system(block: Block) -> list[Part]:
    if own(block, NAME) and not isinstance(block.content, str) and block.content:
        shown = [part for part in block.content if part.get("type") != "text" or str(part.get("text", "")).strip()]
        if shown:
            return list(shown)
    return [{"type": "text", "text": plain_text(block.content) or EMPTY}]


def _messages(layout: Layout) -> list[_Message]:
    writer = _Writer()
    for block in layout.blocks:
        writer.add(block)
    messages = [message for message in writer.messages if message.parts]
    if not messages or messages[0].role != "user":
        messages.insert(0, _Message("user", [{"type": "text", "text": BEGINNING}], [Unit(0, True, False, False)]))
    return messages


class _Writer:
    """Builds the messages block by block."""

    def __init__(self) -> None:
        self.messages: list[_Message] = []
        self._ids = CallIds(CALL_ID_CHARS_MAX, unique=True)

    def add(self, block: Block) -> None:
        """The next block."""
        if block.kind is Kind.CALL:
            self._call(block)
        elif block.kind is Kind.RESULT:
            self._result(block)
        elif block.kind is Kind.ASSISTANT:
            self._say(block)
        elif block.kind is Kind.SYSTEM:
            text = plain_text(block.content) or EMPTY
            self._put(block, "user", [{"type": "text", "text": f"<system-message>\n{text}\n</system-message>"}])
        else:
            self._put(block, "user", _parts(block))

    def _say(self, block: Block) -> None:
        parts = _parts(block)
        current = self.messages[-1] if self.messages else None
        self._put(block, "assistant", parts, joins=bool(current and current.role == "assistant" and current.has_calls))

    def _call(self, block: Block) -> None:
        part: Part = {
            "type": "tool_use",
            "id": self._ids.call(block.call_id or "", block.seq),
            "name": tool_name(block.tool),
            "input": arguments_object(block.arguments),
            **part_of(block, NAME),
        }
        current = self.messages[-1] if self.messages else None
        self._put(block, "assistant", [part], joins=bool(current and current.role == "assistant" and current.has_calls))
        self.messages[-1].has_calls = True

    def _result(self, block: Block) -> None:
        result: dict[str, Json] = {"type": "tool_result", "tool_use_id": self._ids.result(block.call_id or "")}
        if own(block, NAME) and not block.replaced:
            if block.content is not None:
                result["content"] = _non_blank(block.content)
        else:
            found = pieces(block.content)
            texts = all(isinstance(piece, Text) for piece in found)
            result["content"] = (plain_text(block.content) or NO_OUTPUT) if texts else [_part(p) for p in found]
        if block.is_error:
            result["is_error"] = True
        result |= part_of(block, NAME)
        current = self.messages[-1] if self.messages else None
        joins = bool(current and current.role == "user" and current.only_results)
        self._put(block, "user", [result], joins=joins, is_result=True)

    def _put(
        self, block: Block, role: str, parts: Sequence[Part], *, joins: bool = False, is_result: bool = False
    ) -> None:
        """Into the current message, or a new one: at another role, or where one of this format's own begins."""
        head = head_of(block, NAME)
        current = self.messages[-1] if self.messages else None
        if current is None or current.role != role or (head is not None and not joins):
            current = _Message(role, fields=head or {})
            self.messages.append(current)
            current.as_text = head is not None and isinstance(block.content, str) and not is_result
        else:
            current.as_text = False
        current.only_results = current.only_results and is_result
        for part in parts:
            kind = part.get("type")
            carries = kind not in REASONING
            current.parts.append(part)
            current.units.append(Unit(block.seq, carries, kind == "tool_use", block.ephemeral))


def _parts(block: Block) -> list[Part]:
    """A message's parts: its own as they came, others in this provider's shapes; never a blank text."""
    reasoning = block.kind is Kind.ASSISTANT and not isinstance(block.content, str) and bool(block.content)
    if own(block, NAME) and not block.replaced and not isinstance(block.content, str) and block.content:
        shown = [p for p in block.content if p.get("type") != "text" or str(p.get("text", "")).strip()]
        return list(shown) or [{"type": "text", "text": EMPTY}]
    found: list[Part] = [_part(piece) for piece in pieces(block.content)]
    signed = [_thinking(p) for p in block.content or () if not isinstance(p, str)] if reasoning else []
    parts = [*(part for part in signed if part is not None), *found]
    if parts or (reasoning and not found):
        return parts
    return [{"type": "text", "text": EMPTY}]


def _thinking(part: Part) -> Part | None:
    """Reasoning whole, with what the provider verifies, or not at all."""
    if part.get("type") == "thinking" and isinstance(part.get("signature"), str):
        return part
    if part.get("type") == "redacted_thinking" and isinstance(part.get("data"), str):
        return part
    if part.get("type") == "reasoning" and isinstance(part.get("signature"), str):
        text = part.get("thinking", part.get("text"))
        if isinstance(text, str):
            return {"type": "thinking", "thinking": text, "signature": part["signature"]}
    return None


def _non_blank(content: str | Sequence[Part]) -> Json:
    if isinstance(content, str):
        return content
    return [p for p in content if p.get("type") != "text" or str(p.get("text", "")).strip()]


def _part(piece: Piece) -> Part:
    if isinstance(piece, Text):
        return {"type": "text", "text": piece.text}
    if isinstance(piece, Image):
        if piece.url is not None:
            return {"type": "image", "source": {"type": "url", "url": piece.url}}
        source = {"type": "base64", "media_type": piece.media_type, "data": piece.data}
        return {"type": "image", "source": source}
    if piece.text is not None:
        source = {"type": "text", "media_type": "text/plain", "data": piece.text}
    elif piece.data is not None:
        source = {"type": "base64", "media_type": piece.media_type, "data": piece.data}
    else:
        source = {"type": "url", "url": piece.url}
    return {"type": "document", "source": source, "title": piece.name}
