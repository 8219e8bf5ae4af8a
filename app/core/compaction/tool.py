"""The compaction tool for agents: one definition without parameters, in each provider's shape."""

from collections.abc import Mapping
from typing import Final

from app.core.log.events import Json
from app.core.render.formats.tools import NativeFormat, write_tools

NAME: Final = "compact_context"
DESCRIPTION: Final = (
    "Have the older part of this conversation summarized now, so that there is room for what comes. Use it when a long"
    " piece of work is done and another one begins, or before reading much. Nothing is lost: what a summary leaves out"
    " can be recalled. The answer says how many messages were compressed into how many summaries, zero of both when"
    " there was nothing to compress."
)
PARAMETERS: Final[Mapping[str, Json]] = {"type": "object", "properties": {}, "additionalProperties": False}


def definition(shape: NativeFormat) -> dict[str, Json]:
    """Return the tool in one provider's shape."""
    return write_tools([{"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}], shape)[0]
