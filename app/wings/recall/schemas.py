"""The recall tool for agents: its definition, its arguments and its answer."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from app.core.lexicon.identifiers import OWN_TOOL
from app.core.log.events import EventType, Json
from app.http.fields import Id, StrictRequest
from app.wings.recall import answer

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
            "maxLength": answer.QUERY_CHARS_MAX,
            "description": "Words, names, paths or numbers to search for; any of them may match, rare ones count most.",
        },
        "seqs": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "maxItems": answer.SEQS_MAX,
            "description": "Sequence numbers of events, as the conversation names them.",
        },
        "paths": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": answer.PATHS_MAX,
            "description": "Files: what was read from and written to them, the newest first; with a query, only what"
            " matches it there.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": answer.LIMIT_MAX,
            "description": f"The most originals that a search gives back ({answer.LIMIT} unless said otherwise, up to"
            f" {answer.SHORT_LIMIT} if they are short). Pass more where a list must be complete.",
        },
        "offset": {
            "type": "integer",
            "minimum": 0,
            "description": "To read on in one long original: its seq alone in seqs, and the next_offset it came with.",
        },
    },
    "additionalProperties": False,
}


TOOL: Final = {"name": OWN_TOOL, "description": DESCRIPTION, "parameters": PARAMETERS}

Seq = Annotated[int, Field(ge=1, le=2**63 - 1, strict=True)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]


class RecallIn(StrictRequest):
    """Request for originals, by at least one of `seqs`, `paths` and `query`."""

    unchecked_text = frozenset({"query", "paths"})

    seqs: list[Seq] = Field(
        [], max_length=answer.SEQS_MAX, description="Seqs of events to return; they do not count towards `limit`."
    )
    paths: list[Path] = Field(
        [],
        max_length=answer.PATHS_MAX,
        description="Paths of files: returns the events about them, newest first, or, with `query`, those that match "
        "it. A path also finds longer paths that end with it.",
    )
    query: str | None = Field(
        None,
        min_length=1,
        max_length=answer.QUERY_CHARS_MAX,
        description="Search text: words, identifiers, paths, options, numbers. Any of them may match; rare ones count "
        "most.",
    )
    limit: int | None = Field(
        None,
        ge=1,
        le=answer.LIMIT_MAX,
        description="Maximum number of originals to return by path or query. Up to the same number of visible events "
        f"is returned in addition, without content. Default: {answer.LIMIT}; with a query up to {answer.SHORT_LIMIT} "
        f"if the additional ones match well and are short (at most {answer.SHORT_TOKENS} tokens each, and all within "
        "three quarters of `max_tokens`).",
    )
    max_tokens: int = Field(
        answer.TOKENS,
        ge=answer.TOKENS_MIN,
        le=answer.TOKENS_MAX,
        description="Maximum size of all contents and snippets together, in tokens by the session's estimator.",
    )
    call_id: UUID | None = Field(
        None,
        description="Id of the call whose context the model sees: content that it shows is not returned again, and "
        "seqs are those of the line on which it was made. Default: the newest call of the view `main` on the current "
        "line.",
    )
    offset: int = Field(
        0,
        ge=0,
        description="Position in a long event at which to continue reading, in characters: its `next_offset`. Requires "
        "exactly one seq, and neither `paths` nor `query`.",
    )

    @model_validator(mode="after")
    def _asks(self) -> "RecallIn":
        if not self.seqs and not self.paths and self.query is None:
            raise ValueError("one of seqs, paths and query is needed")
        if self.offset and (len(self.seqs) != 1 or self.paths or self.query is not None):
            raise ValueError("an offset goes with exactly one seq and nothing else")
        return self


class RecallItem(BaseModel):
    """An event that was requested or found, or a requested seq or path that does not exist. Fields without a value are
    absent."""

    seq: int | None = Field(None, description="Seq of the event; absent for a path without events.")
    type: EventType | None = Field(None, description="Type of the event.")
    turn: int | None = Field(None, description="Number of its turn; 0 before the first turn.")
    occurred_at: datetime | None = Field(
        None, description="Time at which it happened, or was appended if that is not known; exact to the second."
    )
    author: str | None = Field(None, description="Name of the agent that said or did it.")
    tool: str | None = Field(None, description="Name of the tool, for a tool call or result.")
    path: str | None = Field(None, description="Path of the file it concerns; if `missing`, the requested path.")
    call_seq: int | None = Field(None, description="Seq of the tool call, for a tool result.")
    is_error: bool | None = Field(None, description="True for a tool result that reports a failure.")
    visible: bool = Field(False, description="Whether the call shows the event verbatim; if so, `content` is absent.")
    tokens: int = Field(0, description="Size of the whole event, in tokens by the session's estimator.")
    score: float | None = Field(
        None, description="Relevance to the query (BM25, plus a share of nearby events' scores); higher is better."
    )
    snippet: str | None = Field(None, description="Passage of a visible event that matches the query best.")
    content: str | None = Field(
        None,
        description="Text of the event, for a tool call the tool and its arguments; images and files appear as their "
        "kind in brackets. Absent if `visible`.",
    )
    truncated: bool | None = Field(None, description="True if `content` is only a part of the text.")
    offset: int | None = Field(None, description="Position of that part in the text, in characters.")
    next_offset: int | None = Field(
        None, description="Position at which to continue reading, to be passed as `offset`; absent at the end."
    )
    redacted: bool | None = Field(None, description="True if its content was erased on request.")
    missing: bool | None = Field(None, description="True if there is no event with this seq, or none about this path.")


class RecallOut(BaseModel):
    """Originals of events, within the requested limits."""

    items: list[RecallItem] = Field(
        description="Events requested by seq; then events found, best first: those that the call does not show, those "
        "that it shows, and last the question of the running turn; then requested seqs and paths that do not exist."
    )
    omitted: int = Field(description="Number of further events that were requested or match, but exceed the limits.")
    unsearched: int | None = Field(
        None,
        description="Number of events that the search left out because they are not indexed yet, as a rule the oldest "
        "ones of a long log that is searched for the first time. A worker is indexing them: search again later. Absent "
        "if all were searched.",
    )
    tokens: int = Field(description="Size of all contents and snippets, in tokens by the session's estimator.")
    call_id: Id | None = Field(
        None, description="Id of the call that `visible` refers to; absent if the session has no calls."
    )
