"""OpenAI's Responses API: `{"input": [...], "instructions"?, "tools"?}`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.core.errors import InvalidMessage
from app.core.events import Json, Part
from app.core.formats.names import CallIds, tool_name
from app.core.formats.parts import (
    EMPTY,
    NO_OUTPUT,
    Image,
    Piece,
    Text,
    arguments_text,
    head_of,
    native,
    own,
    part_of,
    pieces,
    plain_text,
    without,
)
from app.core.formats.reading import arguments_field, content_field, message_object, text_field
from app.core.formats.tools import write_tools
from app.core.render.layout import Block, Breakpoint, Kind, Layout, Written

NAME: Final = "openai-responses"
CALL_ID_CHARS_MAX: Final = 64
_KINDS: Final = {"user": "user.message", "assistant": "assistant.message"}


def read(messages: Sequence[Any]) -> list[dict[str, Json]]:
    """Neutral events of input items. Raises InvalidMessage."""
    return [_read_item(message_object(raw, index), index) for index, raw in enumerate(messages)]


def _read_item(item: Mapping[str, Json], index: int) -> dict[str, Json]:
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str):
        raise InvalidMessage("an item needs a type or a role", index=index, field="type")
    if kind == "message":
        return _read_message(item, index)
    if "call_id" in item and kind.endswith("_call_output"):
        return _read_result(item, kind, index)
    if "call_id" in item and kind.endswith("_call"):
        return _read_call(item, kind, index)
    # Reasoning, a provider-side tool's item, or one we have not heard of: kept whole, for this format alone.
    return {"type": "assistant.message", "content": [item], "native": native(NAME, head={}, part={"item": True})}


def _read_message(item: Mapping[str, Json], index: int) -> dict[str, Json]:
    role = item.get("role")
    content = content_field(item, index)
    if role in ("system", "developer"):
        kind = "system.prompt" if index == 0 else "system.message"
        return {"type": kind, "content": content, "native": native(NAME, head=without(item, "content"))}
    if role not in _KINDS:
        raise InvalidMessage(f"unknown role {role!r}", index=index, field="role")
    return {
        "type": _KINDS[str(role)],
        "content": content,
        "native": native(NAME, head=without(item, "role", "content")),
    }


def _read_call(item: Mapping[str, Json], kind: str, index: int) -> dict[str, Json]:
    event: dict[str, Json] = {"type": "tool.call", "call_id": text_field(item, "call_id", index)}
    if kind == "function_call":
        arguments: Json = arguments_field(item, index)
        tool, part = text_field(item, "name", index), without(item, "type", "call_id", "name", "arguments")
    elif kind == "custom_tool_call":
        arguments = {"input": item.get("input", "")}
        tool, part = text_field(item, "name", index), {"custom": without(item, "call_id", "name", "input")}
    else:
        arguments, tool, part = {}, kind.removesuffix("_call"), {"item": item}
    return {**event, "tool": tool, "arguments": arguments, "native": native(NAME, head={}, part=part)}


def _read_result(item: Mapping[str, Json], kind: str, index: int) -> dict[str, Json]:
    event: dict[str, Json] = {"type": "tool.result", "call_id": text_field(item, "call_id", index)}
    plain = kind in ("function_call_output", "custom_tool_call_output")
    if not plain or not isinstance(item.get("output"), (str, list)):
        return {**event, "content": f"[{kind}]", "native": native(NAME, head={}, part={"item": item})}
    part = without(item, "call_id", "output", *(("type",) if kind == "function_call_output" else ()))
    content = content_field(item, index, "output")
    return {**event, "content": content, "native": native(NAME, head={}, part=part)}


def write(layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Written:
    """The request. A neutral system prompt becomes `instructions`; one that came as an item stays one."""
    request: dict[str, Json] = {}
    items: list[Json] = []
    if layout.system is not None:
        if own(layout.system, NAME):
            items.append(_message(layout.system, "system"))
        else:
            request["instructions"] = plain_text(layout.system.content) or EMPTY
    ids = CallIds(CALL_ID_CHARS_MAX, unique=False)
    for block in layout.blocks:
        if block.kind is Kind.CALL:
            items.append(_call(block, ids))
        elif block.kind is Kind.RESULT:
            items.append(_result(block, ids))
        elif block.kind is Kind.ASSISTANT:
            items += _say(block)
        else:
            items.append(_message(block, "system" if block.kind is Kind.SYSTEM else "user"))
    request["input"] = items
    if tools := write_tools(layout.tools, "openai-responses"):
        request["tools"] = tools
    return Written(request)


def _say(block: Block) -> list[Json]:
    if own(block, NAME) and part_of(block, NAME).get("item") and block.content:
        return list(block.content)
    if not own(block, NAME) and not isinstance(block.content, str) and block.content and not pieces(block.content):
        return []  # nothing but another provider's reasoning
    return [_message(block, "assistant")]


def _message(block: Block, role: str) -> dict[str, Json]:
    head = head_of(block, NAME) or {}
    if own(block, NAME) and not block.replaced:
        blank = not block.content or (isinstance(block.content, str) and not block.content.strip())
        return {"role": role, **head, "content": EMPTY if blank else block.content}
    found = pieces(block.content)
    if role == "assistant" or all(isinstance(piece, Text) for piece in found):
        return {"role": role, "content": plain_text(block.content) or EMPTY}
    return {"role": role, "content": [_part(piece) for piece in found]}


def _call(block: Block, ids: CallIds) -> dict[str, Json]:
    part = part_of(block, NAME)
    call_id = ids.call(block.call_id or "", block.seq)
    if "item" in part:
        return {**part["item"], "call_id": call_id}
    name = tool_name(block.tool)
    if "custom" in part:
        text = block.arguments.get("input", "") if isinstance(block.arguments, Mapping) else ""
        return {**part["custom"], "call_id": call_id, "name": name, "input": text}
    own_text = own(block, NAME) and isinstance(block.arguments, str)
    arguments = block.arguments if own_text else arguments_text(block.arguments)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **part}


def _result(block: Block, ids: CallIds) -> dict[str, Json]:
    part = part_of(block, NAME)
    call_id = ids.result(block.call_id or "")
    if "item" in part:
        item: dict[str, Json] = {**part["item"], "call_id": call_id}
        return {**item, "output": block.content} if block.replaced and isinstance(item.get("output"), str) else item
    output: Json
    if own(block, NAME) and not block.replaced:
        output = block.content
    else:
        found = pieces(block.content)
        output = plain_text(block.content) or NO_OUTPUT
        if block.is_error and not block.replaced:
            output = f"[error] {output}"
        if not all(isinstance(piece, Text) for piece in found):
            output = [_part(piece) for piece in found]
    return {"type": "function_call_output", "call_id": call_id, "output": output, **part}


def _part(piece: Piece) -> Part:
    if isinstance(piece, Text):
        return {"type": "input_text", "text": piece.text}
    if isinstance(piece, Image):
        return {"type": "input_image", "image_url": piece.any_url, "detail": piece.detail or "auto"}
    if piece.text is not None:
        return {"type": "input_text", "text": piece.text}
    if piece.url is not None:
        return {"type": "input_file", "file_url": piece.url}
    return {
        "type": "input_file",
        "filename": piece.name,
        "file_data": f"data:{piece.media_type};base64,{piece.data}",
    }
