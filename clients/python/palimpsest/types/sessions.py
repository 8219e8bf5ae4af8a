"""Types of `sessions`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from palimpsest._model import Model
from palimpsest.types.policies import PolicyRef


@dataclass(frozen=True, kw_only=True)
class EpochOut(Model):
    """An epoch: a stored state of a view. Within it, contexts only grow at the end, so that caches stay valid."""

    epoch: int
    """Number of the epoch within its view, counted from 1."""
    head: int
    """Seq of the last event when the epoch was opened."""
    cause: str
    """Cause of the epoch: `start` (first context of the view, if nothing else applies), `system_prompt` or `tools`
    (a new one was logged), `late_result` (an old tool call got its result), `model`, `window` or `policy` (the
    view's settings changed; `policy` also if the policy evicts at every context), `redaction` (an event was
    erased), `visibility` (events were hidden or shown), `expiry` (an event expired or was superseded), `ttl`
    (TTL pruning after idle time), `healed` (a summary now covers events that had been dropped), `cap` (a kind
    of content exceeded its cap), `cold_cache` (the provider's cache had expired anyway), `break_even` (keeping
    the evicted content had cost as much as rewriting the cache), `budget` (the context exceeded its trigger or
    target), `forced` (the request set `force`), `overflow` (retry of a call that was too long).
    """
    tokens_before: int
    """Estimated size of the context before the epoch's changes, in the model's tokens."""
    tokens_after: int
    """Estimated size of the context after the epoch's changes, in the model's tokens."""
    created_at: datetime
    """Time of creation."""


@dataclass(frozen=True, kw_only=True)
class EpochPage(Model):
    """A page of a view's epochs."""

    items: list[EpochOut]
    """Epochs by number."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class ParentOut(Model):
    """Session that another one was forked from."""

    id: str
    """Id of the session or line whose log this one begins with."""
    at: int
    """Seq of the last event that both share."""


@dataclass(frozen=True, kw_only=True)
class SessionTokens(Model):
    """Sizes of a session, in tokens by the estimator."""

    log: int
    """Size of all events as logged."""
    context: int
    """Estimated current size of the `main` view's context; before its first context, the size of the log."""


@dataclass(frozen=True, kw_only=True)
class SessionOut(Model):
    """A session: the log of one agent, and its settings."""

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


@dataclass(frozen=True, kw_only=True)
class SessionPage(Model):
    """A page of sessions."""

    items: list[SessionOut]
    """Sessions, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
