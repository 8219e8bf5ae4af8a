"""What adapters share whose frameworks have messages of parts, as Anthropic's: a message is a role and its blocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from palimpsest.formats.common import usage_of
from palimpsest.types import UsageIn

Block = dict[str, Any]


def message(role: str, blocks: Iterable[Block | None]) -> dict[str, Any]:
    """A message in the format `anthropic`; None among the blocks is what no model reads as content."""
    return {"role": role, "content": [_placed(block, role) for block in blocks if block is not None]}


def _placed(block: Block, role: str) -> Block:
    """The block; as text if it is a call of the user or a result in the model's answer, which the format has not."""
    if block["type"] == ("tool_use" if role == "user" else "tool_result"):
        return {"type": "text", "text": json.dumps(block.get("input", block.get("content")), default=str)}
    return block


def text(said: str | None) -> Block | None:
    """A block of text; None if there is none, since providers refuse empty ones."""
    return {"type": "text", "text": said} if said else None


def thinking(said: str | None, signature: str | None = None) -> Block:
    """A block of the model's reasoning."""
    return {"type": "thinking", "thinking": said or "", **({"signature": signature} if signature else {})}


def call(call_id: str, name: str, arguments: Any) -> Block:
    """A tool call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def result(call_id: str, content: Any, *, is_error: bool = False) -> Block:
    """The result of a tool call: text, or anything that JSON can hold."""
    said = content if isinstance(content, str) else json.dumps(content, default=str, ensure_ascii=False)
    block: Block = {"type": "tool_result", "tool_use_id": call_id, "content": said}
    return {**block, "is_error": True} if is_error else block


def image(uri: str, media_type: str | None) -> Block:
    """An image by its address, or by its bytes as a `data:` URI."""
    if uri.startswith("data:"):
        data = uri.partition(",")[2]
        return {"type": "image", "source": {"type": "base64", "media_type": media_type or "image/png", "data": data}}
    return {"type": "image", "source": {"type": "url", "url": uri}}


def usage(all_input: int | None, cached: int | None, output: int | None, written: int | None = None) -> UsageIn | None:
    """What a call used, of figures that count cached input as input; in the format `anthropic` it is apart."""
    own = None if all_input is None else max(0, all_input - (cached or 0) - (written or 0))
    return usage_of(input_tokens=own, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=output)


def arguments_of(changed: str) -> Mapping[str, Any]:
    """The arguments that a plan puts in place of a call's."""
    parsed = json.loads(changed)
    return parsed if isinstance(parsed, dict) else {"input": parsed}
