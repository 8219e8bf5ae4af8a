"""Outputs of tool calls in the Responses API, for results that did not come in this format or are shown as stubs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.core.log.block import Block
from app.core.log.events import Json, Part
from app.core.render.formats.parts import NO_OUTPUT, Image, Piece, Text, pieces, plain_text

BLANK_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""One pixel, for a screenshot that is not shown: the output of a computer call accepts nothing else."""


def output_item(call_kind: str, block: Block) -> dict[str, Json]:
    """Return the output item, without its call_id, for a result that is replaced or came in another format."""
    text = plain_text(block.content) or NO_OUTPUT
    if block.is_error and not block.replaced:
        text = f"[error] {text}"
    return _OUTPUTS.get(call_kind, _plain)(call_kind, block, text)


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


def _plain(call_kind: str, block: Block, text: str) -> dict[str, Json]:
    return {"type": f"{call_kind}_output", "output": text}


def _rich(call_kind: str, block: Block, text: str) -> dict[str, Json]:
    """Return a function's or custom tool's output: text, or parts if it holds more than text."""
    found = pieces(block.content)
    if all(isinstance(piece, Text) for piece in found):
        return _plain(call_kind, block, text)
    marked: Sequence[Piece] = [Text("[error]"), *found] if block.is_error else found
    return {"type": f"{call_kind}_output", "output": [input_part(piece) for piece in marked]}


def _computer(call_kind: str, block: Block, text: str) -> dict[str, Json]:
    images = (piece.any_url for piece in pieces(block.content) if isinstance(piece, Image))
    output = {"type": "computer_screenshot", "image_url": next(images, BLANK_IMAGE)}
    return {"type": "computer_call_output", "output": output}


def _shell(call_kind: str, block: Block, text: str) -> dict[str, Json]:
    outcome = {"type": "exit", "exit_code": 1 if block.is_error else 0}
    return {"type": "shell_call_output", "output": [{"stdout": text, "stderr": "", "outcome": outcome}]}


def _apply_patch(call_kind: str, block: Block, text: str) -> dict[str, Json]:
    status = "failed" if block.is_error else "completed"
    return {"type": "apply_patch_call_output", "status": status, "output": text}


def _tool_search(call_kind: str, block: Block, text: str) -> dict[str, Json]:
    return {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": []}


_OUTPUTS: Final[Mapping[str, Callable[[str, Block, str], dict[str, Json]]]] = {
    "function_call": _rich,
    "custom_tool_call": _rich,
    "computer_call": _computer,
    "shell_call": _shell,
    "apply_patch_call": _apply_patch,
    "tool_search_call": _tool_search,
}
