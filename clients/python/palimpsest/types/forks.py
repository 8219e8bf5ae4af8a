"""Types of `forks`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from palimpsest._model import Model
from palimpsest.types.policies import PolicyRef
from palimpsest.types.sessions import ParentOut, SessionTokens


@dataclass(frozen=True, kw_only=True)
class LeftOutOut(Model):
    """A tool call or result that a fork was made in front of."""

    seq: int
    """Seq of the event: its position in the session's log, counted from 1."""
    type: Literal["tool.call", "tool.result"]
    """Type of the event."""
    call_id: str
    """Id of the tool call."""
    tool: str | None
    """Name of the tool; null if it is not known."""


@dataclass(frozen=True, kw_only=True)
class ForkOut(Model):
    """A fork, and what it left out of the round in which it was made."""

    id: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this is about: a path with it in place of the session's id always means this
    line.
    """
    head: int
    """Seq of the last event in the session's log; 0 while the log is empty."""
    epoch: int
    """Number of the current epoch of the `main` view, 0 before its first context; after a new policy or an
    erasure, the one that its next context opens.
    """
    turns: int
    """Number of turns that have begun."""
    policy: PolicyRef
    """Version of the policy for views that have none of their own."""
    model: str | None
    """Name of the model for views that have none of their own; null if it was never given."""
    window_assumed: bool
    """Whether the input window of `model`, or of no model, is not known: contexts then assume 128,000 tokens
    unless `max_tokens` or the policy's `window_tokens` says it.
    """
    estimator: str
    """Name of the estimator that counts the events, such as `tiktoken:o200k_base`; fixed from the first event on."""
    metadata: dict[str, Any]
    """Client's own data about the session."""
    tokens: SessionTokens
    """Sizes of the log and of the current context."""
    outside_tokens: int | None
    """Tokens that the client sends in addition to each request; null if it never said so."""
    created_at: datetime
    """Time at which it was created."""
    updated_at: datetime
    """Time of the last append, or change of settings or layers."""
    parent: ParentOut | None = None
    """Session that this one is a fork of; null if it is none, or if the key does not reach the parent."""
    left_out: list[LeftOutOut]
    """Events of the parent behind `parent.at` that belong to what the fork shares: results of tool calls that have
    none in the fork, and further calls of the same answer. Append the results to the fork, or fork behind them;
    until then its contexts show the calls as pending. Empty for a fork between rounds.
    """


@dataclass(frozen=True, kw_only=True)
class RewindOut(Model):
    """A session that went back, and what its line left out of the round in which it ends."""

    id: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this is about: a path with it in place of the session's id always means this
    line.
    """
    head: int
    """Seq of the last event in the session's log; 0 while the log is empty."""
    epoch: int
    """Number of the current epoch of the `main` view, 0 before its first context; after a new policy or an
    erasure, the one that its next context opens.
    """
    turns: int
    """Number of turns that have begun."""
    policy: PolicyRef
    """Version of the policy for views that have none of their own."""
    model: str | None
    """Name of the model for views that have none of their own; null if it was never given."""
    window_assumed: bool
    """Whether the input window of `model`, or of no model, is not known: contexts then assume 128,000 tokens
    unless `max_tokens` or the policy's `window_tokens` says it.
    """
    estimator: str
    """Name of the estimator that counts the events, such as `tiktoken:o200k_base`; fixed from the first event on."""
    metadata: dict[str, Any]
    """Client's own data about the session."""
    tokens: SessionTokens
    """Sizes of the log and of the current context."""
    outside_tokens: int | None
    """Tokens that the client sends in addition to each request; null if it never said so."""
    created_at: datetime
    """Time at which it was created."""
    updated_at: datetime
    """Time of the last append, or change of settings or layers."""
    parent: ParentOut | None = None
    """Session that this one is a fork of; null if it is none, or if the key does not reach the parent."""
    left_out: list[LeftOutOut]
    """Events of the line before, behind the seq where this one ends, that belong to what both share: results of
    tool calls that have none here, and further calls of the same answer. Append the results, or go back to a
    seq between rounds; until then contexts show the calls as pending. Empty for an end between rounds.
    """
