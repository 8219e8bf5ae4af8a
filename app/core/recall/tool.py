"""The recall tool for agents: one definition, in each provider's shape."""

from collections.abc import Mapping, Sequence
from typing import Final

from app.core.lexicon.tools import OWN_TOOL, is_recall_tool
from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.log.parse import tool_definitions
from app.core.recall.answer import LIMIT, LIMIT_MAX, PATHS_MAX, QUERY_CHARS_MAX, SEQS_MAX, SHORT_LIMIT
from app.core.render.formats.tools import NativeFormat, tool_names, write_tools

DESCRIPTION: Final = (
    "Get back the original text of earlier messages, tool calls and tool results of this conversation that were left"
    " out, shortened or summarized to save room. Nothing is ever lost: use this before asking the user again, before"
    " guessing a value, and instead of repeating a tool call whose result you have had before. Where the conversation"
    ' says "Recall it with seq N", pass N in seqs. Otherwise search with query, in the words or names that the'
    " original would contain. A search finds what shares words with the query: where an answer lies in several places"
    " (a list, a count, a comparison, a change over time), search once for each part, then again with the names, dates"
    " and words that the results bring up, before concluding that there is no more. What you can still see is reported"
    " as visible and not repeated."
)
PARAMETERS: Final[Mapping[str, Json]] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "maxLength": QUERY_CHARS_MAX,
            "description": "Words, names, paths or numbers to search for; any of them may match, rare ones count most.",
        },
        "seqs": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "maxItems": SEQS_MAX,
            "description": "Sequence numbers of events, as the conversation names them.",
        },
        "paths": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": PATHS_MAX,
            "description": "Files: what was read from and written to them, the newest first; with a query, only what"
            " matches it there.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": LIMIT_MAX,
            "description": f"The most originals that a search gives back ({LIMIT} unless said otherwise, up to"
            f" {SHORT_LIMIT} if they are short). Pass more where a list must be complete.",
        },
        "offset": {
            "type": "integer",
            "minimum": 0,
            "description": "To read on in one long original: its seq alone in seqs, and the next_offset it came with.",
        },
    },
    "additionalProperties": False,
}


def has_recall(events: Sequence[Event]) -> bool:
    """Return whether the newest tool list of a log has the recall tool, also under the names of MCP clients."""
    tools = next((event for event in reversed(events) if event.type is EventType.TOOLS), None)
    return tools is not None and any(map(is_recall_tool, tool_names(tool_definitions(tools.block.content))))


def definition(shape: NativeFormat) -> dict[str, Json]:
    """Return the tool in one provider's shape."""
    neutral = {"name": OWN_TOOL, "description": DESCRIPTION, "parameters": PARAMETERS}
    return write_tools([neutral], shape)[0]
