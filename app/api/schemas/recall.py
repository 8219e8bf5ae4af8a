"""Recall: what was left out, and the tool that asks for it."""

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
    """At least one of `seqs`, `paths` and `query`."""

    as_it_was = frozenset({"query", "paths"})

    seqs: list[Seq] = Field([], max_length=recall.SEQS_MAX, description="These events, whatever `limit` is.")
    paths: list[Path] = Field(
        [],
        max_length=recall.PATHS_MAX,
        description="Events about these files, the newest first; with a query, those of them that match it. A path "
        "also finds what was logged under a longer one that ends in it.",
    )
    query: str | None = Field(
        None,
        min_length=1,
        max_length=recall.QUERY_CHARS_MAX,
        description="Words, identifiers, paths, options, numbers. Any may match; rare ones count most.",
    )
    limit: int = Field(
        recall.LIMIT,
        ge=1,
        le=recall.LIMIT_MAX,
        description="The most originals found by path or query. Visible ones met on the way come beside them.",
    )
    max_tokens: int = Field(
        recall.TOKENS,
        ge=recall.TOKENS_MIN,
        le=recall.TOKENS_MAX,
        description="The most tokens of all contents and snippets, by the session's estimator.",
    )
    call_id: UUID | None = Field(
        None, description="The call whose context the model has before it; else the newest one of the view `main`."
    )
    offset: int = Field(0, ge=0, description="Where to read on in one event, in characters: its `next_offset`.")

    @model_validator(mode="after")
    def _asks(self) -> "RecallIn":
        if not self.seqs and not self.paths and self.query is None:
            raise ValueError("one of seqs, paths and query is needed")
        if self.offset and (len(self.seqs) != 1 or self.paths or self.query is not None):
            raise ValueError("an offset goes with exactly one seq and nothing else")
        return self


def asked(body: RecallIn) -> Asked:
    """The request as the service takes it."""
    return Asked(
        tuple(body.seqs), tuple(body.paths), body.query, body.limit, body.max_tokens, body.call_id, body.offset
    )


class RecallItem(BaseModel):
    """An event that was asked for or found, or (`missing`) one that there is not.

    `content` is what it says as one text: a call's tool and arguments, of other parts than text their kind in brackets.
    It is absent where the call shows the event anyway (`visible`), and part of the text where that is longer than what
    there is room for: `truncated`, from `offset` to `next_offset`, with which to read on; without one, to the end.
    """

    seq: int | None = None
    type: EventType | None = None
    turn: int | None = None
    occurred_at: datetime | None = None
    author: str | None = None
    tool: str | None = None
    path: str | None = None
    call_seq: int | None = Field(None, description="Of a tool result: its call.")
    is_error: bool | None = None
    visible: bool = False
    tokens: int = Field(0, description="What the whole event takes in a context.")
    score: float | None = Field(None, description="BM25 with a share of the events near it; of a query only.")
    snippet: str | None = Field(None, description="Where a visible event matches the query.")
    content: str | None = None
    truncated: bool | None = None
    offset: int | None = None
    next_offset: int | None = None
    redacted: bool | None = None
    missing: bool | None = None


class RecallOut(BaseModel):
    """The events asked for by seq first, then those found, the best first."""

    items: list[RecallItem]
    omitted: int = Field(description="Further events that match the query or the paths, or had no room.")
    tokens: int = Field(description="What the contents and snippets take.")
    call_id: str | None = Field(None, description="The call that `visible` speaks of, if there is one.")


class ToolsOut(BaseModel):
    """The definition of one tool in each provider's format."""

    openai: dict[str, Any]
    openai_responses: dict[str, Any] = Field(alias="openai-responses")
    anthropic: dict[str, Any]
