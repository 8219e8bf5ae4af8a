"""Recall of originals, and the definition of the recall tool for agents."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, get_args
from uuid import UUID

from fastapi import Depends, Query
from pydantic import BaseModel, Field, model_validator

from app.core.log.events import EventType
from app.core.recall import answer as recall
from app.core.recall.tool import definition
from app.core.render.formats.tools import NativeFormat
from app.http.fields import Sid, StrictRequest
from app.http.key_prefix import PrefixAccess
from app.http.operation import Resource, Who, service
from app.resources.lines.service import Lines
from app.resources.recall.service import Recall, Recalled, RecallRequest

Seq = Annotated[int, Field(ge=1, le=2**63 - 1, strict=True)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]


class RecallIn(StrictRequest):
    """Request for originals, by at least one of `seqs`, `paths` and `query`."""

    unchecked_text = frozenset({"query", "paths"})

    seqs: list[Seq] = Field(
        [], max_length=recall.SEQS_MAX, description="Seqs of events to return; they do not count towards `limit`."
    )
    paths: list[Path] = Field(
        [],
        max_length=recall.PATHS_MAX,
        description="Paths of files: returns the events about them, newest first, or, with `query`, those that match "
        "it. A path also finds longer paths that end with it.",
    )
    query: str | None = Field(
        None,
        min_length=1,
        max_length=recall.QUERY_CHARS_MAX,
        description="Search text: words, identifiers, paths, options, numbers. Any of them may match; rare ones count "
        "most.",
    )
    limit: int | None = Field(
        None,
        ge=1,
        le=recall.LIMIT_MAX,
        description="Maximum number of originals to return by path or query. Up to the same number of visible events "
        f"is returned in addition, without content. Default: {recall.LIMIT}; with a query up to {recall.SHORT_LIMIT} "
        f"if the additional ones match well and are short (at most {recall.SHORT_TOKENS} tokens each, and all within "
        "three quarters of `max_tokens`).",
    )
    max_tokens: int = Field(
        recall.TOKENS,
        ge=recall.TOKENS_MIN,
        le=recall.TOKENS_MAX,
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


def to_request(body: RecallIn) -> RecallRequest:
    """Return the request in the form that the service takes."""
    return RecallRequest(
        tuple(body.seqs), tuple(body.paths), body.query, body.limit, body.max_tokens, body.call_id, body.offset
    )


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
    tokens: int = Field(description="Size of all contents and snippets, in tokens by the session's estimator.")
    call_id: str | None = Field(
        None, description="Id of the call that `visible` refers to; absent if the session has no calls."
    )


class ToolsOut(BaseModel):
    """Definition of one tool in the format of each provider."""

    openai: dict[str, Any] = Field(description="Definition for OpenAI's chat completions.")
    openai_responses: dict[str, Any] = Field(
        alias="openai-responses", description="Definition for OpenAI's Responses API."
    )
    anthropic: dict[str, Any] = Field(description="Definition for Anthropic's messages.")
    gemini: dict[str, Any] = Field(description="Definition for Gemini: a tool with one function declaration.")


router = Resource("recall")


@router.operation(
    "POST",
    "/v1/sessions/{sid}/recall",
    scope="read",
    resolves_line=False,
    name="recall",
    summary="Recall originals",
    returns=RecallOut,
    problems=("not-found",),
    response_model_exclude_none=True,
)
async def post_recall(
    sid: Sid,
    body: RecallIn,
    who: Who,
    recall: Annotated[Recall, Depends(service(Recall))],
    lines: Annotated[Lines, Depends(service(Lines))],
) -> Recalled:
    """Recall the originals of events from the whole log, by seq, path or search.

    Events that the call shows verbatim are only listed, without content. With `call_id`, the log is that of the
    session's line on which the call was made.
    """
    line = await lines.of_call(who.tenant_id, sid, body.call_id)
    return await recall.find(who.tenant_id, line, to_request(body))


@router.operation(
    "GET",
    "/v1/tools/recall",
    scope="read",
    access=PrefixAccess.NONE,
    summary="Get the recall tool",
    returns=ToolsOut | dict[str, Any],
)
async def recall_tool(
    shape: Annotated[
        NativeFormat | None,
        Query(alias="format", description="Format of the definition. Default: all, by name of the format."),
    ] = None,
) -> Mapping[str, Any]:
    """Get the definition of the recall tool for a model. Send the arguments of its calls to `POST …/recall`."""
    return {name: definition(name) for name in get_args(NativeFormat)} if shape is None else definition(shape)
