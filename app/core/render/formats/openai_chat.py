"""OpenAI's Chat Completions API: `{"messages": [...], "tools"?}`. Lossless apart from content that it would refuse."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.log.events import Json, Part
from app.core.render.formats import parts as shared
from app.core.render.formats.layout import Layout, MessageWriter, framed
from app.core.render.formats.parts import Image, Piece, Text
from app.core.render.formats.tools import CallIds, tool_name, tool_names, write_tools

NAME: Final = "openai"
CALL_ID_CHARS_MAX: Final = 40
ROLES: Final = (*shared.SYSTEM_ROLES, "user", "assistant", "tool", "function")
BESIDE_CONTENT: Final = ("tool_calls", "refusal", "audio", "function_call")
"""Fields that an assistant's message may hold instead of content."""


def read(messages: Sequence[Any]) -> list[list[dict[str, Json]]]:
    """Read chat messages into the neutral events of each. Raises InvalidMessage."""
    events: list[list[dict[str, Json]]] = []
    prompts = shared.leading(messages, shared.SYSTEM_ROLES)
    for index, raw in enumerate(messages):
        message = shared.message_object(raw, index)
        role = shared.role_field(message, index, ROLES)
        if role == "assistant":
            events.append(_read_assistant(message, index))
        elif role == "tool":
            events.append([_read_result(message, index)])
        else:
            events.append([_read_plain(message, role, index, prompt=index < prompts)])
    return events


def _read_plain(message: Mapping[str, Json], role: str, index: int, *, prompt: bool) -> dict[str, Json]:
    head = shared.without(message, "content", *(("role",) if role in ("system", "user") else ()))
    content = shared.content_field(message, index)
    if role in shared.SYSTEM_ROLES:
        return shared.prompt_event(NAME, content, head, prompt=prompt)
    return shared.message_event(NAME, "user.message", content, head)


def _read_assistant(message: Mapping[str, Json], index: int) -> list[dict[str, Json]]:
    content = message.get("content")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidMessage("tool_calls must be a list", index=index, field="tool_calls")
    if content is not None:
        content = shared.content_field(message, index)
    carried = content is not None and not (calls and shared.is_blank(content))
    head = shared.without(message, "role", *(("content",) if carried else ()), *(("tool_calls",) if calls else ()))
    if head.get("tool_calls") == []:  # refused by the provider
        del head["tool_calls"]
    events: list[dict[str, Json]] = []
    if carried or not calls:
        events.append({"type": "assistant.message", "native": shared.native(NAME, head=head)})
        if carried:
            events[0]["content"] = content
    for call in calls:
        events.append(_read_call(call, index, head=None if events else head))
    return events


def _read_call(raw: Json, index: int, head: Mapping[str, Json] | None) -> dict[str, Json]:
    call = shared.message_object(raw, index)
    call_id = shared.text_field(call, "id", index)
    kind = call.get("type")
    part: dict[str, Json] = {}
    if extra := shared.without(
        call, "id", "function", "custom", *(("type",) if kind in ("function", "custom") else ())
    ):
        part["call"] = extra
    if kind == "custom":
        inner = shared.message_object(call.get("custom"), index, "custom")
        part["custom"] = shared.without(inner, "name", "input")
        arguments: Json = {"input": shared.text_field(inner, "input", index, may_be_empty=True)}
    else:
        inner = shared.message_object(call.get("function"), index, "function")
        if extra := shared.without(inner, "name", "arguments"):
            part["function"] = extra
        if kind is None:
            part["untyped"] = True
        arguments = inner.get("arguments")
    tool = shared.text_field(inner, "name", index)
    return shared.call_event(call_id, tool, arguments, native=shared.native(NAME, head=head, part=part))


def _read_result(message: Mapping[str, Json], index: int) -> dict[str, Json]:
    return shared.result_event(
        shared.text_field(message, "tool_call_id", index),
        content=shared.content_field(message, index),
        native=shared.native(NAME, head=shared.without(message, "role", "tool_call_id", "content")),
    )


class ChatWriter(MessageWriter):
    """Writes chat messages. Cache breakpoints are ignored: the provider caches prefixes automatically."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.frame = framed({}, "messages", {"tools": write_tools(layout.tools, NAME)})
        self._names = tool_names(layout.tools)
        self._joins = False
        """Whether calls and texts join the newest message: it is the assistant's and has no results yet."""
        self._ids = CallIds(CALL_ID_CHARS_MAX, unique=False)
        for prompt in layout.system:
            self.add(prompt)

    def _attributes(self) -> dict[str, Any]:
        newest = None if self._newest is None else dict(self._newest)
        return {**super()._attributes(), "_newest": newest, "_joins": self._joins, "_ids": self._ids.copy()}

    def _plain(self, block: Block) -> None:
        """Add a message with content as received, or in this provider's parts; never empty."""
        self._joins = False
        role, content = "system" if block.kind is Kind.SYSTEM else "user", block.content
        if isinstance(content, str):
            content = content if content.strip() else shared.EMPTY
        elif shared.is_own(block, NAME) and not shared.is_blank(content):
            content = shared.non_blank(content or ())
        else:
            found = shared.pieces(content)
            texts_only = role == "system" or not found or (len(found) == 1 and isinstance(found[0], Text))
            content = shared.plain_text(content) or shared.EMPTY if texts_only else [_part(piece) for piece in found]
        self._write({"role": role, "content": content, **(shared.native_of(block, NAME).get("head") or {})})

    def _show(self, pieces: Sequence[Piece]) -> None:
        self._joins = False
        self._write({"role": "user", "content": [*map(_part, pieces)]})

    def _say(self, block: Block) -> None:
        if self._joins and self._newest.get("tool_calls"):
            _append_text(self._newest, shared.plain_text(shared.content_or_refusal(block)))
        elif shared.is_own(block, NAME):
            self._begin_answer(block.content, shared.native_of(block, NAME).get("head") or {})
        elif not shared.is_only_reasoning(shared.content_or_refusal(block)):
            self._begin_answer(shared.plain_text(shared.content_or_refusal(block)), {})

    def _begin_answer(self, content: str | Sequence[Part] | None, fields: Mapping[str, Json]) -> None:
        """Begin an assistant message. Blank content is kept only if a field of BESIDE_CONTENT is set."""
        shown = content if content is None or isinstance(content, str) else shared.non_blank(content)
        message: dict[str, Json] = {"role": "assistant", **({} if shown is None else {"content": shown}), **fields}
        if shared.is_blank(message.get("content")) and not any(message.get(name) for name in BESIDE_CONTENT):
            message["content"] = shared.EMPTY
        self._begin(message)
        self._joins = True

    def _call(self, block: Block) -> None:
        head = shared.native_of(block, NAME).get("head")
        if not self._joins or (head is not None and not self._newest.get("tool_calls")):
            self._begin({"role": "assistant", **(head if head is not None else {"content": None})})
            self._joins = True
        self._newest["tool_calls"] = [*(self._newest.get("tool_calls") or ()), self._call_value(block)]

    def _call_value(self, block: Block) -> dict[str, Json]:
        part = shared.native_of(block, NAME).get("part", {})
        call_id = self._ids.call(block.call_id or "", block.seq, own=shared.is_own(block, NAME))
        name = tool_name(block.tool, self._names)
        if "custom" in part:
            custom = {"name": name, "input": shared.custom_input(block.arguments), **part["custom"]}
            return {"id": call_id, "type": "custom", "custom": custom, **part.get("call", {})}
        function = {"name": name, "arguments": shared.arguments_text(block, NAME), **part.get("function", {})}
        typed = {} if part.get("untyped") else {"type": "function"}
        return {"id": call_id, **typed, "function": function, **part.get("call", {})}

    def _result(self, block: Block) -> None:
        self._joins = False
        content: Json
        if shared.is_own(block, NAME) and block.content is not None:
            content = block.content
        else:
            self._images += tuple(piece for piece in shared.pieces(block.content) if isinstance(piece, Image))
            content = shared.result_text(block)
        head = shared.native_of(block, NAME).get("head") or {}
        call_id = self._ids.result(block.call_id or "")
        self._write({"role": "tool", "tool_call_id": call_id, "content": content, **head})


def _part(piece: Piece) -> Part:
    if isinstance(piece, Text):
        return shared.text_part(piece.text)
    if isinstance(piece, Image):
        detail = {"detail": piece.detail} if piece.detail else {}
        return {"type": "image_url", "image_url": {"url": piece.any_url, **detail}}
    if piece.data is not None:
        data = f"data:{piece.media_type};base64,{piece.data}"
        return {"type": "file", "file": {"filename": piece.name, "file_data": data}}
    return shared.text_part(piece.text or f"[file {piece.name}: {piece.url}]")


def _append_text(message: dict[str, Json], text: str) -> None:
    """Add text between a call and its result to the message of the call.

    Only render versions 1 and 2 do so; later ones give such text a message of its own (`fit.split_rounds`).
    """
    if not text.strip():
        return
    content = message.get("content")
    if not content:
        message["content"] = text
    elif isinstance(content, str):
        message["content"] = f"{content}\n\n{text}"
    else:
        message["content"] = [*content, shared.text_part(text)]
