"""Types of `lines`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from palimpsest._model import Model
from palimpsest.types.policies import PolicyRef
from palimpsest.types.sessions import ParentOut, SessionTokens


@dataclass(frozen=True, kw_only=True)
class LeftOutOut(Model):
    """A tool call or result that was cut off by a fork or rewind."""

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
    """A fork, and the events of its last round that were cut off."""

    id: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this concerns. Used in a path in place of the session's id, it always means
    this line.
    """
    head: int
    """Seq of the last event in the session's log; 0 while the log is empty."""
    epoch: int
    """Number of the current epoch of the `main` view, 0 before its first context; after a new policy or an
    erasure, a number that no epoch gets: the next context opens the one after it.
    """
    turns: int
    """Number of turns that have begun."""
    policy: PolicyRef
    """Version of the policy for views without one of their own."""
    model: str | None
    """Name of the model for views without one of their own; null if it was never set."""
    window_assumed: bool
    """Whether `model` is not set or its window is not known: contexts then assume 128,000 tokens unless
    `max_tokens` or the policy's `window_tokens` is set.
    """
    estimator: str
    """Name of the estimator that counts the events, such as `tiktoken:o200k_base`; fixed by the first event."""
    metadata: dict[str, Any]
    """Client's own data about the session."""
    tokens: SessionTokens
    """Sizes of the log and of the current context."""
    outside_tokens: int | None
    """Tokens that the client sends in addition to each request; null if it was never set."""
    created_at: datetime
    """Time of creation."""
    updated_at: datetime
    """Time of the last append, or change of settings or layers."""
    parent: ParentOut | None = None
    """Session that this one is a fork of; null if it is not a fork or the key cannot access the parent."""
    left_out: list[LeftOutOut]
    """Events of the parent after `parent.at` that belong to the last round of the fork: results of its tool calls,
    and further calls of the same response. Append the results to the fork, or fork after them; until then its
    contexts show the calls as pending. Empty for a fork between rounds.
    """


@dataclass(frozen=True, kw_only=True)
class LineOut(Model):
    """A line (branch) of a session. The session's id means one of its lines at a time, the current line."""

    id: str
    """Id of the line. Used in place of a session's id, it always means this line."""
    head: int
    """Seq of the last event in the session's log; 0 while the log is empty."""
    current: bool
    """Whether the session's id means this line now."""
    parent: str | None
    """Id of the line or session whose log it begins with; null if it has none."""
    at: int | None
    """Seq of the last event that it shares with `parent`."""
    created_at: datetime
    """Time of creation."""


@dataclass(frozen=True, kw_only=True)
class LinePage(Model):
    """A page of a session's lines."""

    items: list[LineOut]
    """Lines, oldest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class RewindOut(Model):
    """A rewound session, and the events of its last round that were cut off."""

    id: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this concerns. Used in a path in place of the session's id, it always means
    this line.
    """
    head: int
    """Seq of the last event in the session's log; 0 while the log is empty."""
    epoch: int
    """Number of the current epoch of the `main` view, 0 before its first context; after a new policy or an
    erasure, a number that no epoch gets: the next context opens the one after it.
    """
    turns: int
    """Number of turns that have begun."""
    policy: PolicyRef
    """Version of the policy for views without one of their own."""
    model: str | None
    """Name of the model for views without one of their own; null if it was never set."""
    window_assumed: bool
    """Whether `model` is not set or its window is not known: contexts then assume 128,000 tokens unless
    `max_tokens` or the policy's `window_tokens` is set.
    """
    estimator: str
    """Name of the estimator that counts the events, such as `tiktoken:o200k_base`; fixed by the first event."""
    metadata: dict[str, Any]
    """Client's own data about the session."""
    tokens: SessionTokens
    """Sizes of the log and of the current context."""
    outside_tokens: int | None
    """Tokens that the client sends in addition to each request; null if it was never set."""
    created_at: datetime
    """Time of creation."""
    updated_at: datetime
    """Time of the last append, or change of settings or layers."""
    parent: ParentOut | None = None
    """Session that this one is a fork of; null if it is not a fork or the key cannot access the parent."""
    left_out: list[LeftOutOut]
    """Events of the previous line after `to` that belong to the last round of the new line: results of its tool
    calls, and further calls of the same response. Append the results, or rewind to a seq between rounds; until
    then contexts show the calls as pending. Empty if the line ends between rounds.
    """
