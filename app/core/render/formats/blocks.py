"""The server's own format, no provider's: `{"blocks": [...]}`, one object for each block, the most stable first."""

from collections.abc import Sequence
from typing import Final

from app.core.log.block import Block
from app.core.log.events import Json
from app.core.render.formats.layout import Breakpoint, Layout, Written

NAME: Final = "blocks"


def write(layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Written:
    """Write the tools and the system prompts, then the conversation; breakpoints are not written."""
    blocks: list[dict[str, Json]] = []
    if layout.tools_seq:
        blocks.append({"seq": layout.tools_seq, "kind": "tools", "content": list(layout.tools)})
    blocks += [_block(block) for block in (*layout.system, *layout.blocks)]
    return Written({"blocks": blocks})


def _block(block: Block) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "content": block.content,
        "call_id": block.call_id,
        "tool": block.tool,
        "arguments": block.arguments,
        "is_error": block.is_error or None,
        "replaced": block.replaced or None,
    }
    return {"seq": block.seq, "kind": block.kind.value, **{k: v for k, v in fields.items() if v is not None}}
