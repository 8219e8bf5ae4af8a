"""The format of OpenAI's Responses API."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Self

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.log.events import ID_CHARS_MAX, Json, Part
from app.core.render.formats import parts as shared
from app.core.render.formats.layout import Layout, Mark, MessageWriter, framed
from app.core.render.formats.parts import Image, Piece, Text
from app.core.render.formats.tools import CallIds, tool_name, tool_names, write_tools

NAME: Final = "openai-responses"
CALL_ID_CHARS_MAX: Final = 64
LOCAL_SHELL_OUTPUT: Final = "local_shell_call_output"
BY_ID: Final = "by_id"
"""The mark of an output that refers to its call by `id`."""
_OUTPUT: Final = "_output"
_SEARCH_OUTPUT: Final = "tool_search_output"
_KINDS: Final = {"user": "user.message", "assistant": "assistant.message"}
BLANK_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""One pixel, for a screenshot that is not shown: the output of a computer call accepts nothing else."""


def read(messages: Sequence[Any]) -> list[list[dict[str, Json]]]:
    """Read input items into the neutral event of each. Raises InvalidMessage."""
    prompts = shared.leading(messages, shared.SYSTEM_ROLES)
    messages = _with_call_ids(messages)
    items = [shared.message_object(raw, index) for index, raw in enumerate(messages)]
    calls = {(item["type"], item["call_id"]) for item in items if _is_call(item)}
    return [[_read_item(item, index, calls, prompt=index < prompts)] for index, item in enumerate(items)]


def _with_call_ids(messages: Sequence[Any]) -> list[Any]:
    """Return the items with `call_id` set in local shell outputs that name only an `id`, the call's or its item's."""
    calls: dict[Json, Json] = {}
    named = []
    for item in messages:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "local_shell_call" and isinstance(item.get("id"), str):
            calls[item["id"]] = item.get("call_id")
        elif kind == LOCAL_SHELL_OUTPUT and item.get("call_id") is None and isinstance(item.get("id"), str):
            item = {**item, "call_id": calls.get(item["id"]) or item["id"], BY_ID: True}
        named.append(item)
    return named


def _is_call(item: Mapping[str, Json]) -> bool:
    """Return whether an item is a call whose output the client provides."""
    kind, call_id = item.get("type"), item.get("call_id")
    named = isinstance(kind, str) and isinstance(call_id, str) and 1 <= len(call_id) <= ID_CHARS_MAX
    return named and str(kind).endswith("_call") and kind != "_call"


def _is_output(item: Mapping[str, Json], calls: Collection[tuple[str, str]]) -> bool:
    """Return whether an item is the output of a call: by its type, or because its call is in `calls`.

    A provider's output of its own work, such as a `program_output`, has a `call_id` too, but answers no call.
    """
    kind, call_id = item.get("type"), item.get("call_id")
    if not isinstance(kind, str) or not isinstance(call_id, str) or not 1 <= len(call_id) <= ID_CHARS_MAX:
        return False
    answers = f"{kind.removesuffix(_OUTPUT)}_call"
    return (
        kind.endswith("_call_output")
        or kind == _SEARCH_OUTPUT
        or (kind.endswith(_OUTPUT) and (answers, call_id) in calls)
    )


def _read_item(
    item: Mapping[str, Json], index: int, calls: Collection[tuple[str, str]], *, prompt: bool
) -> dict[str, Json]:
    kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
    if not isinstance(kind, str):
        raise InvalidMessage("an item needs a type or a role", index=index, field="type")
    if kind == "message":
        return _read_message(item, index, prompt=prompt)
    if kind == "function_call_output" or _is_output(item, calls):
        return _read_result(item, kind, index)
    if kind == "function_call" or _is_call(item):
        return _read_call(item, kind, index)
    # Reasoning, items of provider-side tools and unknown items are kept whole, for this format only.
    return {"type": "assistant.message", "content": [item], "native": shared.native(NAME, head={}, part={"item": True})}


def _read_message(item: Mapping[str, Json], index: int, *, prompt: bool) -> dict[str, Json]:
    role = shared.role_field(item, index, (*shared.SYSTEM_ROLES, *_KINDS))
    content = shared.content_field(item, index)
    if role in shared.SYSTEM_ROLES:
        return shared.prompt_event(NAME, content, shared.without(item, "content"), prompt=prompt)
    return shared.message_event(NAME, _KINDS[role], content, shared.without(item, "role", "content"))


def _read_call(item: Mapping[str, Json], kind: str, index: int) -> dict[str, Json]:
    """Return a call's event. Functions and custom tools have a name; for other kinds of call the kind is used."""
    call_id = shared.text_field(item, "call_id", index)
    if kind == "function_call":
        arguments: Json = item.get("arguments")
        tool, rest = (
            shared.text_field(item, "name", index),
            shared.without(item, "type", "call_id", "name", "arguments"),
        )
    elif kind == "custom_tool_call":
        arguments = {"input": shared.text_field(item, "input", index, may_be_empty=True)}
        tool, rest = shared.text_field(item, "name", index), shared.without(item, "call_id", "name", "input")
    else:
        arguments = shared.without(item, "type", "id", "call_id", "status")
        tool, rest = kind.removesuffix("_call"), shared.without(item, "call_id", *arguments)
    kept = shared.native(NAME, part={"item": rest} if rest else None)
    return shared.call_event(call_id, tool, arguments, native=kept)


def _read_result(item: Mapping[str, Json], kind: str, index: int) -> dict[str, Json]:
    """Return a result's event. The output becomes the content, a single object one part."""
    event = shared.result_event(shared.text_field(item, "call_id", index))
    part: dict[str, Json] = {}
    if item.get(BY_ID) is True:
        part[BY_ID] = True
    if rest := shared.without(item, BY_ID, "call_id", "output", *(("type",) if kind == "function_call_output" else ())):
        part["item"] = rest
    if kind in ("function_call_output", "custom_tool_call_output"):
        event["content"] = shared.content_field(item, index, "output")
    elif isinstance(output := item.get("output"), Mapping):
        event["content"], part["single"] = [output], True
    elif isinstance(output, list) and all(isinstance(piece, Mapping) for piece in output):
        event["content"] = output
    elif "output" in item:
        event["content"] = shared.text_field(item, "output", index) if output else ""
    event["native"] = shared.native(NAME, part=part)
    return event


def output_item(call_kind: str, block: Block) -> dict[str, Json]:
    """Return the output item, without its call_id, for a result that is replaced or came in another format."""
    kind, text, found = f"{call_kind}_output", shared.result_text(block), shared.pieces(block.content)
    match call_kind:
        case "computer_call":
            images = (piece.any_url for piece in found if isinstance(piece, Image))
            return {"type": kind, "output": {"type": "computer_screenshot", "image_url": next(images, BLANK_IMAGE)}}
        case "shell_call":
            outcome = {"type": "exit", "exit_code": 1 if block.is_error else 0}
            return {"type": kind, "output": [{"stdout": text, "stderr": "", "outcome": outcome}]}
        case "apply_patch_call":
            return {"type": kind, "status": "failed" if block.is_error else "completed", "output": text}
        case "tool_search_call":
            return {"type": _SEARCH_OUTPUT, "execution": "client", "status": "completed", "tools": []}
        case "function_call" | "custom_tool_call" if not all(isinstance(piece, Text) for piece in found):
            marked: Sequence[Piece] = [Text("[error]"), *found] if block.is_error else found
            return {"type": kind, "output": [input_part(piece) for piece in marked]}
    return {"type": kind, "output": text}


def input_part(piece: Piece) -> Part:
    """Return a text, an image or a file in this API's shape."""
    if isinstance(piece, Text):
        return {"type": "input_text", "text": piece.text}
    if isinstance(piece, Image):
        return {"type": "input_image", "image_url": piece.any_url, "detail": piece.detail or "auto"}
    if piece.text is not None:
        return {"type": "input_text", "text": piece.text}
    if piece.url is not None:
        return {"type": "input_file", "file_url": piece.url}
    return {"type": "input_file", "filename": piece.name, "file_data": f"data:{piece.media_type};base64,{piece.data}"}


class ResponsesWriter(MessageWriter):
    """Writes input items. Neutral system prompts become `instructions`; prompts that came as items remain items.

    Reasoning is withheld until something of the assistant follows it: the provider refuses it alone. Cache breakpoints
    are ignored: the provider caches prefixes automatically.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        foreign = [
            shared.plain_text(block.content) or shared.EMPTY
            for block in layout.system
            if not shared.is_own(block, NAME)
        ]
        tools = write_tools(layout.tools, NAME)
        self.frame = framed({"instructions": "\n\n".join(foreign)}, "input", {"tools": tools})
        self._names = tool_names(layout.tools)
        self._ids = CallIds(CALL_ID_CHARS_MAX, unique=False)
        self._kinds: dict[str, str] = {}  # by call, of its item; the kind of its output must match
        self._reasoning: list[Mapping[str, Json]] = []
        for block in layout.system:
            if shared.is_own(block, NAME):
                self._item(_message(block, "system"))

    def restored(self, mark: Mark) -> Self:
        """Return the writer as of one of its marks. Blocks may be added to its copy only."""
        other = super().restored(mark)
        other._kinds = self._kinds.copy()  # later calls included: each call sets its kind before its output reads it
        return other

    def _attributes(self) -> dict[str, Any]:
        return {**super()._attributes(), "_reasoning": self._reasoning.copy(), "_ids": self._ids.copy()}

    def _plain(self, block: Block) -> None:
        self._item(_message(block, "system" if block.kind is Kind.SYSTEM else "user"))

    def _call(self, block: Block) -> None:
        self._item(self._call_item(block))

    def _result(self, block: Block) -> None:
        self._item(self._result_item(block))

    def _item(self, item: Mapping[str, Json]) -> None:
        kind = item.get("type")
        if kind == "reasoning":
            self._reasoning.append(item)
            return
        if item.get("role", "assistant") == "assistant" and not str(kind).endswith("_output"):
            for reasoning in self._reasoning:
                self._begin(reasoning)
        self._reasoning.clear()
        self._begin(item)

    def _say(self, block: Block) -> None:
        if shared.is_own(block, NAME) and shared.native_of(block, NAME).get("part", {}).get("item") and block.content:
            for part in block.content:
                if not isinstance(part, str):
                    self._item(part)
        elif shared.is_own(block, NAME) or not shared.is_only_reasoning(shared.content_or_refusal(block)):
            self._item(_message(block, "assistant"))

    def _call_item(self, block: Block) -> dict[str, Json]:
        rest = shared.native_of(block, NAME).get("part", {}).get("item", {})
        kind = str(rest.get("type", "function_call"))
        self._kinds[block.call_id or ""] = kind
        call_id = self._ids.call(block.call_id or "", block.seq, own=shared.is_own(block, NAME))
        item: dict[str, Json] = {"type": kind, "call_id": call_id, **rest}
        if kind == "custom_tool_call":
            return {**item, "name": tool_name(block.tool, self._names), "input": shared.custom_input(block.arguments)}
        if kind != "function_call":
            return {**item, **(block.arguments if isinstance(block.arguments, Mapping) else {})}
        return {**item, "name": tool_name(block.tool, self._names), "arguments": shared.arguments_text(block, NAME)}

    def _result_item(self, block: Block) -> dict[str, Json]:
        call_id = self._ids.result(block.call_id or "")
        kind = self._kinds.get(block.call_id or "", "function_call")
        part = shared.native_of(block, NAME).get("part", {})
        rest = part.get("item", {})
        if not shared.is_own(block, NAME):
            return {**rest, **output_item(kind, block), "call_id": call_id}
        item: dict[str, Json] = {"type": "function_call_output", "call_id": call_id, **rest}
        if part.get(BY_ID):
            del item["call_id"]
        if block.content is not None:
            item["output"] = block.content[0] if part.get("single") else block.content
        elif item["type"] in ("function_call_output", "custom_tool_call_output"):
            item["output"] = shared.NO_OUTPUT
        return item


def _message(block: Block, role: str) -> dict[str, Json]:
    head = shared.native_of(block, NAME).get("head") or {}
    if shared.is_own(block, NAME):
        content = block.content if isinstance(block.content, str) else shared.non_blank(block.content or ())
        return {"role": role, **head, "content": shared.EMPTY if shared.is_blank(content) else content}
    found = shared.pieces(shared.content_or_refusal(block))
    if role != "user" or all(isinstance(piece, Text) for piece in found):
        return {"role": role, "content": shared.plain_text(shared.content_or_refusal(block)) or shared.EMPTY}
    return {"role": role, "content": [input_part(piece) for piece in found]}
