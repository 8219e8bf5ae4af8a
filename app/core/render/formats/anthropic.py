"""Anthropic's Messages API: `{"system"?: [...], "messages": [...], "tools"?}`.

Lossless except for content that the provider would refuse, and for the client's own `cache_control`, which is removed:
the server places the cache markers itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self

from app.core.errors import InvalidMessage
from app.core.log.event import REASONING_PARTS, Block, Kind
from app.core.log.events import Json, Part, arguments_object
from app.core.render.formats import parts as shared
from app.core.render.formats.layout import (
    Breakpoint,
    Frame,
    Layout,
    Mark,
    Marked,
    MessageWriter,
    Place,
    Places,
    framed,
    sendable,
)
from app.core.render.formats.parts import Image, Piece, Text
from app.core.render.formats.tools import CallIds, tool_name, tool_names, write_tools

NAME: Final = "anthropic"
CALL_ID_CHARS_MAX: Final = 64
MARKER: Final[Mapping[str, Json]] = {"type": "ephemeral"}
HOUR_MARKER: Final[Mapping[str, Json]] = {"type": "ephemeral", "ttl": "1h"}


def read(messages: Sequence[Any]) -> list[list[dict[str, Json]]]:
    """Read Anthropic messages into the neutral events of each. Raises InvalidMessage."""
    events: list[list[dict[str, Json]]] = []
    prompts = shared.leading(messages, ("system",))
    for index, raw in enumerate(messages):
        message = shared.message_object(raw, index)
        role = shared.role_field(message, index, ("system", "user", "assistant"))
        head = shared.without(message, "role", "content")
        content = unmarked(shared.content_field(message, index))
        if role == "system":
            events.append([shared.prompt_event(NAME, content, head, prompt=index < prompts)])
        else:
            events.append(_read_message(role, content, head, index))
    return events


def _read_message(
    role: str, content: str | Sequence[Part] | None, head: Mapping[str, Json], index: int
) -> list[dict[str, Json]]:
    kind = f"{role}.message"
    special, foreign = ("tool_use", "tool_result") if role == "assistant" else ("tool_result", "tool_use")
    if content is None or isinstance(content, str):
        return [shared.message_event(NAME, kind, content, head)]
    if role == "user":  # the provider requires results first
        content = sorted(content, key=lambda part: part.get("type") != special)

    def read_special(part: Part) -> dict[str, Json] | None:
        if part.get("type") == foreign:
            raise InvalidMessage(f"a {foreign} has no place in a message of the {role}", index=index, field="content")
        if part.get("type") != special:
            return None
        return _read_call(part, index) if role == "assistant" else _read_result(part, index)

    return shared.message_events(NAME, kind, head, content, read_special)


def _read_call(part: Part, index: int) -> dict[str, Json]:
    call_id, tool = shared.text_field(part, "id", index), shared.text_field(part, "name", index)
    kept = shared.without(part, "type", "id", "name", "input")
    return shared.call_event(call_id, tool, part.get("input"), native_part=kept)


def _read_result(part: Part, index: int) -> dict[str, Json]:
    event = shared.result_event(shared.text_field(part, "tool_use_id", index))
    if "content" in part:
        event["content"] = unmarked(shared.content_field(part, index))
    if part.get("is_error") is True:
        event["is_error"] = True
    event["native_part"] = shared.without(
        part, "type", "tool_use_id", "content", *(("is_error",) if part.get("is_error") is True else ())
    )
    return event


@dataclass(slots=True)
class _Message:
    role: str
    fields: Mapping[str, Json]
    as_text: bool
    """Whether content of a single part is written as a plain string, as it was received."""
    parts: list[Part] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    """The seq of each part's event."""
    has_calls: bool = False

    def copy(self) -> "_Message":
        """Return an independent copy."""
        return _Message(self.role, self.fields, self.as_text, self.parts.copy(), self.seqs.copy(), self.has_calls)

    def text(self, markers: Mapping[int, Part] = MappingProxyType({})) -> bytes:
        """Return the message as JSON, with cache markers on some of its parts."""
        parts = [{**part, "cache_control": markers[n]} if n in markers else part for n, part in enumerate(self.parts)]
        plain = self.as_text and len(parts) == 1 and not markers
        return sendable({"role": self.role, "content": parts[0]["text"] if plain else parts, **self.fields})


class AnthropicWriter(MessageWriter):
    """Writes messages as the provider accepts them: the first is the user's, none is empty or ends in reasoning.

    Reasoning at the end of a message is withheld until the assistant's next content follows it.
    """

    _newest: _Message | None

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self._prompts = [part for block in layout.system for part in system_parts(block)]
        self._tools = write_tools(layout.tools, NAME)
        self._frames: dict[bool | None, Frame] = {}
        self.frame = self._framed(None)
        self._names = tool_names(layout.tools)
        self._ids = CallIds(CALL_ID_CHARS_MAX, unique=True)
        self._messages: list[_Message] = []
        self._places: dict[int, Place] = {}
        self._blocks = 0
        self._runs = False
        """Whether the last counted block was a tool use: lookback counts a run of them as one."""

    def restored(self, mark: Mark) -> Self:
        """Return the writer as of one of its marks. Blocks may be added to its copy only."""
        other = super().restored(mark)
        count = mark.messages
        other._messages = self._messages[:count]
        whole = count == len(self._messages)
        other._places = self._places.copy() if whole else {s: p for s, p in self._places.items() if p.message < count}
        other._ids = self._ids.restored(mark.attributes["_ids"])
        return other

    def _attributes(self) -> dict[str, Any]:
        newest = self._newest and self._newest.copy()
        return {"_newest": newest, "_blocks": self._blocks, "_runs": self._runs, "_ids": self._ids.mark()}

    @property
    def places(self) -> Places:
        """The places for cache markers in the settled messages, by their event's seq, in order."""
        return self._places

    def marked(self, points: Sequence[Breakpoint], places: Places) -> Marked:
        """Return the markers for these breakpoints at their places, and at the end of a prefix that is not empty."""
        frame, placed = self.frame, list[Breakpoint]()
        parts: dict[int, dict[int, Part]] = {}
        for point in points:
            place = places.get(point.seq)
            if point.kind == "system":
                if not self._prompts and not self._tools:
                    continue
                frame = self._framed(point.hour)
            elif place is None:
                continue
            else:
                parts.setdefault(place.message, {})[place.part] = _marker(hour=point.hour)
            placed.append(point)
        return Marked(frame, {n: self._messages[n].text(markers) for n, markers in parts.items()}, tuple(placed))

    def _framed(self, hour: bool | None) -> Frame:
        """Return the frame, with a cache marker at the end of the prefix unless `hour` is None; each is made once."""
        if hour not in self._frames:
            system, tools = self._prompts, self._tools
            if hour is not None:
                last = {"cache_control": _marker(hour=hour)}
                if system:
                    system = [*system[:-1], {**system[-1], **last}]
                else:
                    tools = [*tools[:-1], {**tools[-1], **last}]
            self._frames[hour] = framed({"system": system}, "messages", {"tools": tools})
        return self._frames[hour]

    def _settle(self) -> None:
        message, self._newest = self._newest, None
        if message is None or not message.parts:
            return
        if not self._messages and message.role != "user":
            self._open()
        if message.role == "assistant":
            while message.parts and not _can_carry(message.parts[-1]):
                message.parts.pop()
                message.seqs.pop()
        if message.parts:
            self._append(message)

    def _append(self, message: _Message) -> None:
        for number, (part, seq) in enumerate(zip(message.parts, message.seqs, strict=True)):
            uses = part.get("type") == "tool_use"
            self._blocks += not (self._runs and uses)
            self._runs = uses
            if seq and _can_carry(part):
                self._places.pop(seq, None)  # a pending result has its call's seq, and follows the call
                self._places[seq] = Place(seq, self._blocks, len(self._messages), number)
        self._messages.append(message)
        self.texts.append(message.text())

    def _open(self) -> None:
        self._append(_Message("user", {}, as_text=False, parts=[shared.text_part(shared.BEGINNING)], seqs=[0]))

    def _plain(self, block: Block) -> None:
        if block.kind is not Kind.SYSTEM:
            self._put(block, "user", message_parts(block))
        elif (shared.native_of(block, NAME).get("head") or {}).get("role") == "system":
            self._put(block, "system", message_parts(block))
        else:
            self._put(
                block, "user", [shared.text_part(shared.system_text(shared.plain_text(block.content) or shared.EMPTY))]
            )

    def _say(self, block: Block) -> None:
        self._put(block, "assistant", message_parts(block), joins=self._calls_are_open())

    def _call(self, block: Block) -> None:
        part: Part = {
            "type": "tool_use",
            "id": self._ids.call(block.call_id or "", block.seq, own=shared.is_own(block, NAME)),
            "name": tool_name(block.tool, self._names),
            "input": arguments_object(block.arguments),
            **shared.native_of(block, NAME).get("part", {}),
        }
        self._put(block, "assistant", [part], joins=self._calls_are_open()).has_calls = True

    def _calls_are_open(self) -> bool:
        """Return whether the assistant's next content joins its current message, whose calls have no results yet."""
        return self._newest is not None and self._newest.role == "assistant" and self._newest.has_calls

    def _result(self, block: Block) -> None:
        result: dict[str, Json] = {"type": "tool_result", "tool_use_id": self._ids.result(block.call_id or "")}
        result |= result_content(block)
        if block.is_error:
            result["is_error"] = True
        result |= shared.native_of(block, NAME).get("part", {})
        self._put(block, "user", [result], joins=True)  # a user's message in progress holds this round's results

    def _put(self, block: Block, role: str, parts: Sequence[Part], *, joins: bool = False) -> _Message:
        """Add parts to the current message, or to a new one if the role changes or a message of this format begins."""
        head = shared.native_of(block, NAME).get("head")
        message = self._newest
        if message is None or message.role != role or (head is not None and not joins):
            plain = head is not None and isinstance(block.content, str) and block.kind is not Kind.RESULT
            message = _Message(role, head or {}, plain)
            self._begin(message)
        else:
            message.as_text = False
        message.parts += parts
        message.seqs += [block.seq] * len(parts)
        return message


def _can_carry(part: Part) -> bool:
    """Return whether a part can carry a cache marker: all but reasoning can."""
    return part.get("type") not in REASONING_PARTS


def _marker(*, hour: bool) -> Part:
    return HOUR_MARKER if hour else MARKER


def unmarked(content: str | Sequence[Part] | None) -> str | list[Part] | None:
    """Return content without the client's cache markers."""
    return (
        content
        if content is None or isinstance(content, str)
        else [shared.without(part, "cache_control") for part in content]
    )


def system_parts(block: Block) -> list[Part]:
    """Return a system prompt's parts, never empty."""
    if (
        shared.is_own(block, NAME)
        and not isinstance(block.content, str)
        and (shown := shared.non_blank(block.content or ()))
    ):
        return shown
    return [shared.text_part(shared.plain_text(block.content) or shared.EMPTY)]


def message_parts(block: Block) -> list[Part]:
    """Return a message's parts without blank texts; empty only for reasoning that another provider signed."""
    if shared.is_own(block, NAME) and not isinstance(block.content, str) and block.content:
        return shared.non_blank(block.content) or [shared.text_part(shared.EMPTY)]
    content = shared.content_or_refusal(block)
    if block.kind is not Kind.ASSISTANT:
        return [_part(piece) for piece in shared.pieces(content)] or [shared.text_part(shared.EMPTY)]
    signed = [] if content is None or isinstance(content, str) else [_thinking(part) for part in content]
    found = [
        *(part for part in signed if part is not None),
        *(shared.text_part(shared.piece_text(piece)) for piece in shared.pieces(content)),
    ]
    return found or ([] if shared.is_only_reasoning(content) else [shared.text_part(shared.EMPTY)])


def result_content(block: Block) -> Mapping[str, Json]:
    """Return a tool result's `content` field; {} for a result of this format without content."""
    if shared.is_own(block, NAME):
        if block.content is None:
            return {}
        return {"content": block.content if isinstance(block.content, str) else shared.non_blank(block.content)}
    found = shared.pieces(block.content)
    if all(isinstance(piece, Text) for piece in found):
        return {"content": shared.plain_text(block.content) or shared.NO_OUTPUT}
    return {"content": [_part(piece) for piece in found]}


def _thinking(part: Part) -> Part | None:
    """Return reasoning with its signature; None if the part is not reasoning or has no signature to verify."""
    kind, signature = part.get("type"), part.get("signature")
    if kind == "redacted_thinking" and isinstance(part.get("data"), str):
        return {"type": kind, "data": part["data"]}
    thinking = part.get("thinking", part.get("text"))
    if kind in ("thinking", "reasoning") and isinstance(signature, str) and signature and isinstance(thinking, str):
        return {"type": "thinking", "thinking": thinking, "signature": signature}
    return None


def _part(piece: Piece) -> Part:
    if isinstance(piece, Text):
        return shared.text_part(piece.text)
    if isinstance(piece, Image):
        if piece.url is not None:
            return {"type": "image", "source": {"type": "url", "url": piece.url}}
        return {"type": "image", "source": {"type": "base64", "media_type": piece.media_type, "data": piece.data}}
    source: dict[str, Json]
    if piece.text is not None:
        source = {"type": "text", "media_type": "text/plain", "data": piece.text}
    elif piece.data is not None:
        source = {"type": "base64", "media_type": piece.media_type, "data": piece.data}
    else:
        source = {"type": "url", "url": piece.url}
    return {"type": "document", "source": source, "title": piece.name}
