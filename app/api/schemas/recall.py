"""Recall: the originals of what contexts left out, and the tool that asks for them."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from app.api.schemas.common import Closed
from app.core import recall
from app.core.events import EventType
from app.services.recall import Asked

Seq = Annotated[int, Field(ge=1, le=2**63 - 1, strict=True)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]


class RecallIn(Closed):
    """What to recall: at least one of `seqs`, `paths` and `query`."""

    as_it_was = frozenset({"query", "paths"})

    seqs: list[Seq] = Field(
        [], max_length=recall.SEQS_MAX, description="Seqs of events to give back; `limit` does not count them."
    )
    paths: list[Path] = Field(
        [],
        max_length=recall.PATHS_MAX,
        description="Paths of files: gives back the events about them, newest first, or with `query` those that match "
        "it. A path also finds longer ones that end in it.",
    )
    query: str | None = Field(
        None,
        min_length=1,
        max_length=recall.QUERY_CHARS_MAX,
        description="Search text: words, identifiers, paths, options, numbers. Any of them may match; rare ones count "
        "most. Null: no search.",
    )
    limit: int = Field(
        recall.LIMIT,
        ge=1,
        le=recall.LIMIT_MAX,
        description="Most originals to give back by path or query. Visible events found on the way come in addition, "
        "at most as many.",
    )
    max_tokens: int = Field(
        recall.TOKENS,
        ge=recall.TOKENS_MIN,
        le=recall.TOKENS_MAX,
        description="Most tokens that all contents and snippets may take together, by the session's estimator.",
    )
    call_id: UUID | None = Field(
        None,
        description="Id of the call whose context the model sees, to tell what is visible in it. Null: the newest call "
        "of the view `main`.",
    )
    offset: int = Field(
        0,
        ge=0,
        description="Place to read on in one long event, in characters: the `next_offset` it came with. It needs "
        "exactly one seq and nothing else.",
    )

    @model_validator(mode="after")
    def _asks(self) -> "RecallIn":
        if not self.seqs and not self.paths and self.query is None:
            raise ValueError("one of seqs, paths and query is needed")
        if self.offset and (len(self.seqs) != 1 or self.paths or self.query is not None):
            raise ValueError("an offset goes with exactly one seq and nothing else")
        return self


def asked(body: RecallIn) -> Asked:
    """The request in the form that the service takes."""
    return Asked(
        tuple(body.seqs), tuple(body.paths), body.query, body.limit, body.max_tokens, body.call_id, body.offset
    )


class RecallItem(BaseModel):
    """An event that was asked for or found, or what was asked for and does not exist. Fields without a value are
    absent."""

    seq: int | None = Field(None, description="Seq of the event; absent for a path that nothing is about.")
    type: EventType | None = Field(None, description="Type of the event.")
    turn: int | None = Field(None, description="Number of its turn; 0 before the first turn.")
    occurred_at: datetime | None = Field(
        None, description="Time at which it happened, or was appended if that is not known; exact to the second."
    )
    author: str | None = Field(None, description="Name of the agent that said or did it.")
    tool: str | None = Field(None, description="Name of the tool, of a tool call or result.")
    path: str | None = Field(None, description="Path of the file it is about, or the one asked for if `missing`.")
    call_seq: int | None = Field(None, description="Seq of its tool call, of a tool result.")
    is_error: bool | None = Field(None, description="True for a tool result that reports a failure.")
    visible: bool = Field(False, description="Whether the call shows the event verbatim, so that it is not repeated.")
    tokens: int = Field(0, description="Size of the whole event, in tokens by the session's estimator.")
    score: float | None = Field(
        None, description="Relevance to the query (BM25, with a share of nearby events' scores); higher is better."
    )
    snippet: str | None = Field(None, description="Passage of a visible event that matches the query best.")
    content: str | None = Field(
        None,
        description="Text of the event: of a tool call the tool and its arguments, of images and files only a mark in "
        "brackets. Absent if visible.",
    )
    truncated: bool | None = Field(None, description="True if `content` is only a part of the text.")
    offset: int | None = Field(None, description="Beginning of that part in the text, in characters.")
    next_offset: int | None = Field(
        None, description="Value of `offset` to read on with, in characters; absent where the text ends."
    )
    redacted: bool | None = Field(None, description="True if its content was erased on request.")
    missing: bool | None = Field(None, description="True if no event has this seq, or none is about this path.")


class RecallOut(BaseModel):
    """Originals of events, as far as there was room."""

    items: list[RecallItem] = Field(
        description="Events asked for by seq, then those found, best first, then what does not exist."
    )
    omitted: int = Field(description="Number of further events that match or were asked for and had no room.")
    tokens: int = Field(description="Size of all contents and snippets, in tokens by the session's estimator.")
    call_id: str | None = Field(
        None, description="Id of the call that `visible` speaks of; absent if the session has none."
    )


class ToolsOut(BaseModel):
    """Definition of one tool in the format of each provider."""

    openai: dict[str, Any] = Field(description="Definition for OpenAI's chat completions.")
    openai_responses: dict[str, Any] = Field(
        alias="openai-responses", description="Definition for OpenAI's Responses API."
    )
    anthropic: dict[str, Any] = Field(description="Definition for Anthropic's messages.")
