"""Names of tools and of their arguments that are known to hold files, addresses or commands."""

import re
from typing import Final

FILES: Final = ("path", "file_path", "filepath", "file", "filename", "notebook_path")
"""Arguments that hold one file."""
FILE_LISTS: Final = ("paths", "files")
ADDRESSES: Final = ("uri", "url")


OWN_TOOL: Final = "recall"
"""The recall tool. Its calls and results repeat earlier events and are therefore not indexed."""


def is_recall_tool(tool: str | None) -> bool:
    """Return whether a tool is the recall tool, also under the names of MCP clients: `mcp__palimpsest__recall`."""
    return tool is not None and re.split(r"__|[./:]", tool)[-1] == OWN_TOOL
