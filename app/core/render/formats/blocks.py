"""The server's own format, not a provider's: `{"blocks": [...]}`, one object for each block, the most stable first."""

from typing import Final

from app.core.log.block import Block
from app.core.log.events import Json
from app.core.render.formats.layout import Layout
from app.core.render.formats.writer import Writer, framed

NAME: Final = "blocks"


class BlocksWriter(Writer):
    """Writes the tools and the system prompts, then the conversation."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.frame = framed({}, "blocks", {})
        if layout.tools_seq:
            self._begin({"seq": layout.tools_seq, "kind": "tools", "content": list(layout.tools)})
        for block in layout.system:
            self.add(block)

    def add(self, block: Block) -> None:
        """Add the next block."""
        fields: dict[str, Json] = {
            "content": block.content,
            "call_id": block.call_id,
            "tool": block.tool,
            "arguments": block.arguments,
            "is_error": block.is_error or None,
            "replaced": block.replaced or None,
        }
        shown = {name: value for name, value in fields.items() if value is not None}
        self._begin({"seq": block.seq, "kind": block.kind.value, **shown})
