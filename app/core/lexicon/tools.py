"""The names of the tools that are ours."""

import re
from typing import Final

OWN_TOOL: Final = "recall"
"""The recall tool. Its calls and results repeat earlier events and are therefore not indexed."""


def is_own(tool: str | None) -> bool:
    """Whether a tool is the recall tool, under the names of MCP clients too: `mcp__palimpsest__recall`."""
    return tool is not None and re.split(r"__|[./:]", tool)[-1] == OWN_TOOL
