"""The recall tool as `GET /v1/tools/recall` defines it, so that adapters can be created without the server."""

from __future__ import annotations

from typing import Any

RECALL = "recall"
RECALL_DESCRIPTION = (
    "Get back the original text of earlier messages, tool calls and tool results of this conversation that were "
    "left out, shortened or summarized to save room. Nothing is ever lost: use this before asking the user "
    "again, before guessing a value, and instead of repeating a tool call whose result you have had before. "
    'Where the conversation says "Recall it with seq N", pass N in seqs. Otherwise search with query, in the '
    "words or names that the original would contain. A search finds what shares words with the query: where an "
    "answer lies in several places (a list, a count, a comparison, a change over time), search once for each "
    "part, then again with the names, dates and words that the results bring up, before concluding that there is "
    "no more. What you can still see is reported as visible and not repeated."
)
RECALL_PROPERTIES: dict[str, dict[str, Any]] = {
    "query": {
        "type": "string",
        "maxLength": 2000,
        "description": "Words, names, paths or numbers to search for; any of them may match, rare ones count most.",
    },
    "seqs": {
        "type": "array",
        "items": {"type": "integer", "minimum": 1},
        "maxItems": 100,
        "description": "Sequence numbers of events, as the conversation names them.",
    },
    "paths": {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": 20,
        "description": "Files: what was read from and written to them, the newest first; with a query, only what "
        "matches it there.",
    },
    "limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
        "description": "The most originals that a search gives back (10 unless said otherwise, up to 50 if they are "
        "short). Pass more where a list must be complete.",
    },
    "offset": {
        "type": "integer",
        "minimum": 0,
        "description": "To read on in one long original: its seq alone in seqs, and the next_offset it came with.",
    },
}
RECALL_PARAMETERS = {"type": "object", "properties": RECALL_PROPERTIES, "additionalProperties": False}
