"""Schemas of sessions, their epochs and their forks."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import (
    CreatedAt,
    EpochCause,
    EpochHead,
    EpochNumber,
    EpochTokensAfter,
    EpochTokensBefore,
    Head,
    LineName,
    MainEpoch,
    NextCursor,
    Seq,
    SessionId,
    SessionName,
    StrictRequest,
)
from app.api.schemas.policies import PolicyGiven, PolicyRef


class SessionIn(StrictRequest):
    """Settings of a session. Those omitted keep their current value."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"model": "gpt-4o", "policy": {"retention": {"keep_last": 5}}, "metadata": {"user": "ann"}}]
        },
    )

    unchecked_text = frozenset({"policy"})

    policy: PolicyGiven = None
    model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Name of the model for views without one of their own. If set before the first event, it also "
        "determines the estimator.",
    )
    metadata: dict[str, Any] | None = Field(
        None, description="Client's own data about the session, at most 65,536 bytes. It replaces the stored data."
    )
    outside_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Tokens that the client sends in addition to each request, such as tools or a system prompt of its "
        "own, as the provider counts them. If never set, the number is learned from reported usage.",
    )


class SessionTokens(BaseModel):
    """Sizes of a session, in tokens by the estimator."""

    log: int = Field(description="Size of all events as logged.")
    context: int = Field(
        description="Estimated current size of the `main` view's context; before its first context, the size of the "
        "log."
    )


class ParentOut(BaseModel):
    """Session that another one was forked from."""

    id: str = Field(description="Id of the session or line whose log this one begins with.")
    at: int = Field(description="Seq of the last event that both share.")


class SessionOut(BaseModel):
    """A session: the log of one agent, and its settings."""

    id: SessionName
    line: LineName
    head: Head
    epoch: MainEpoch
    turns: int = Field(description="Number of turns that have begun.")
    policy: PolicyRef = Field(description="Version of the policy for views without one of their own.")
    model: str | None = Field(
        description="Name of the model for views without one of their own; null if it was never set."
    )
    window_assumed: bool = Field(
        description="Whether `model` is not set or its window is not known: contexts then assume 128,000 tokens unless "
        "`max_tokens` or the policy's `window_tokens` is set."
    )
    estimator: str = Field(
        description="Name of the estimator that counts the events, such as `tiktoken:o200k_base`; fixed by the first "
        "event."
    )
    metadata: dict[str, Any] = Field(description="Client's own data about the session.")
    tokens: SessionTokens = Field(description="Sizes of the log and of the current context.")
    outside_tokens: int | None = Field(
        description="Tokens that the client sends in addition to each request; null if it was never set."
    )
    created_at: CreatedAt
    updated_at: datetime = Field(description="Time of the last append, or change of settings or layers.")
    parent: ParentOut | None = Field(
        None,
        description="Session that this one is a fork of; null if it is not a fork or the key cannot access the parent.",
    )


class LineOut(BaseModel):
    """A line (branch) of a session. The session's id means one of its lines at a time, the current line."""

    id: str = Field(description="Id of the line. Used in place of a session's id, it always means this line.")
    head: Head
    current: bool = Field(description="Whether the session's id means this line now.")
    parent: str | None = Field(description="Id of the line or session whose log it begins with; null if it has none.")
    at: int | None = Field(description="Seq of the last event that it shares with `parent`.")
    created_at: CreatedAt


class LinePage(BaseModel):
    """A page of a session's lines."""

    items: list[LineOut] = Field(description="Lines, oldest first.")
    next_cursor: NextCursor


class RewindIn(StrictRequest):
    """Request to rewind a session."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"to": 12}]})

    to: int = Field(ge=0, lt=2**63, description="Seq of the last event to keep; 0 for an empty line.")


class SessionPage(BaseModel):
    """A page of sessions."""

    items: list[SessionOut] = Field(description="Sessions, newest first.")
    next_cursor: NextCursor


class EpochOut(BaseModel):
    """An epoch: a stored state of a view. Within it, contexts only grow at the end, so that caches stay valid."""

    epoch: EpochNumber
    head: EpochHead
    cause: EpochCause
    tokens_before: EpochTokensBefore
    tokens_after: EpochTokensAfter
    created_at: CreatedAt


class EpochPage(BaseModel):
    """A page of a view's epochs."""

    items: list[EpochOut] = Field(description="Epochs by number.")
    next_cursor: NextCursor


class ForkIn(StrictRequest):
    """Request for a new session that begins with the log of another, up to a seq."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": "demo-try-2", "at": 120}]})

    id: SessionId = Field(description="Id of the new session, chosen by the client.")
    at: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="Seq of the last event that both share; 0 shares nothing. Default: the head.",
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Client's own data about the new session; the parent's is not copied."
    )


class LeftOutOut(BaseModel):
    """A tool call or result that was cut off by a fork or rewind."""

    seq: Seq
    type: Literal["tool.call", "tool.result"] = Field(description="Type of the event.")
    call_id: str = Field(description="Id of the tool call.")
    tool: str | None = Field(description="Name of the tool; null if it is not known.")


class ForkOut(SessionOut):
    """A fork, and the events of its last round that were cut off."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the parent after `parent.at` that belong to the last round of the fork: results of its "
        "tool calls, and further calls of the same response. Append the results to the fork, or fork after them; until "
        "then its contexts show the calls as pending. Empty for a fork between rounds."
    )


class RewindOut(SessionOut):
    """A rewound session, and the events of its last round that were cut off."""

    left_out: list[LeftOutOut] = Field(
        description="Events of the previous line after `to` that belong to the last round of the new line: results of "
        "its tool calls, and further calls of the same response. Append the results, or rewind to a seq between "
        "rounds; until then contexts show the calls as pending. Empty if the line ends between rounds."
    )
