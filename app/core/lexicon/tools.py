"""The names of this server's own tools."""

import re
from typing import Final

OWN_TOOL: Final = "recall"
"""The recall tool. Its calls and results repeat earlier events and are therefore not indexed."""


def is_recall_tool(tool: str | None) -> bool:
    """Return whether a tool is the recall tool, also under the names of MCP clients: `mcp__palimpsest__recall`."""
    return tool is not None and re.split(r"__|[./:]", tool)[-1] == OWN_TOOL
