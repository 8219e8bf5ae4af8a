"""Messages in Anthropic's format, a role and a list of blocks, for adapters of frameworks with messages of parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from palimpsest.formats.common import usage_of
from palimpsest.types import UsageIn

Block = dict[str, Any]


def message(role: str, blocks: Iterable[Block | None]) -> dict[str, Any]:
    """Return a message in the format `anthropic`, without the blocks that are None."""
    return {"role": role, "content": [_placed(block, role) for block in blocks if block is not None]}


def _placed(block: Block, role: str) -> Block:
    """Return the block, as text if the format forbids it for the role: a call by the user, or a result by the model."""
    if block["type"] == ("tool_use" if role == "user" else "tool_result"):
        return {"type": "text", "text": json.dumps(block.get("input", block.get("content")), default=str)}
    return block


def text(content: str | None) -> Block | None:
    """Return a text block; None for an empty text, which providers refuse."""
    return {"type": "text", "text": content} if content else None


def thinking(content: str | None, signature: str | None = None) -> Block:
    """Return a block of the model's reasoning."""
    return {"type": "thinking", "thinking": content or "", **({"signature": signature} if signature else {})}


def call(call_id: str, name: str, arguments: Any) -> Block:
    """Return the block of a tool call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def result(call_id: str, content: Any, *, is_error: bool = False) -> Block:
    """Return the block of a tool result: text, or anything that can be encoded as JSON."""
    shown = content if isinstance(content, str) else json.dumps(content, default=str, ensure_ascii=False)
    block: Block = {"type": "tool_result", "tool_use_id": call_id, "content": shown}
    return {**block, "is_error": True} if is_error else block


def image(uri: str, media_type: str | None) -> Block:
    """Return the block of an image, given by a URL or by its bytes as a `data:` URI."""
    if uri.startswith("data:"):
        data = uri.partition(",")[2]
        return {"type": "image", "source": {"type": "base64", "media_type": media_type or "image/png", "data": data}}
    return {"type": "image", "source": {"type": "url", "url": uri}}


def usage(all_input: int | None, cached: int | None, output: int | None, written: int | None = None) -> UsageIn | None:
    """Return a call's usage from figures whose input includes cached tokens; in the format `anthropic` it does not."""
    own = None if all_input is None else max(0, all_input - (cached or 0) - (written or 0))
    return usage_of(input_tokens=own, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=output)


def arguments_of(changed: str) -> Mapping[str, Any]:
    """Return the arguments with which a plan replaces those of a call."""
    parsed = json.loads(changed)
    return parsed if isinstance(parsed, dict) else {"input": parsed}
