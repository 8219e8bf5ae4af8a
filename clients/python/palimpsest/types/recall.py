"""Types of `recall`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime

from palimpsest._model import Model
from palimpsest.types.events import EventType


@dataclass(frozen=True, kw_only=True)
class RecallItem(Model):
    """An event that was requested or found, or a requested seq or path that does not exist. Fields without a value
    are absent.
    """

    seq: int | None = None
    """Seq of the event; absent for a path without events."""
    type: EventType | None = None
    """Type of the event."""
    turn: int | None = None
    """Number of its turn; 0 before the first turn."""
    occurred_at: datetime | None = None
    """Time at which it happened, or was appended if that is not known; exact to the second."""
    author: str | None = None
    """Name of the agent that said or did it."""
    tool: str | None = None
    """Name of the tool, for a tool call or result."""
    path: str | None = None
    """Path of the file it concerns; if `missing`, the requested path."""
    call_seq: int | None = None
    """Seq of the tool call, for a tool result."""
    is_error: bool | None = None
    """True for a tool result that reports a failure."""
    visible: bool | None = None
    """Whether the call shows the event verbatim; if so, `content` is absent."""
    tokens: int | None = None
    """Size of the whole event, in tokens by the session's estimator."""
    score: float | None = None
    """Relevance to the query (BM25, plus a share of nearby events' scores); higher is better."""
    snippet: str | None = None
    """Passage of a visible event that matches the query best."""
    content: str | None = None
    """Text of the event, for a tool call the tool and its arguments; images and files appear as their kind in
    brackets. Absent if `visible`.
    """
    truncated: bool | None = None
    """True if `content` is only a part of the text."""
    offset: int | None = None
    """Position of that part in the text, in characters."""
    next_offset: int | None = None
    """Position at which to continue reading, to be passed as `offset`; absent at the end."""
    redacted: bool | None = None
    """True if its content was erased on request."""
    missing: bool | None = None
    """True if there is no event with this seq, or none about this path."""


@dataclass(frozen=True, kw_only=True)
class RecallOut(Model):
    """Originals of events, within the requested limits."""

    items: list[RecallItem]
    """Events requested by seq; then events found, best first: those that the call does not show, those that it
    shows, and last the question of the running turn; then requested seqs and paths that do not exist.
    """
    omitted: int
    """Number of further events that were requested or match, but exceed the limits."""
    unsearched: int | None = None
    """Number of events that the search left out because they are not indexed yet, as a rule the oldest ones of a
    long log that is searched for the first time. A worker is indexing them: search again later. Absent if all
    were searched.
    """
    tokens: int
    """Size of all contents and snippets, in tokens by the session's estimator."""
    call_id: str | None = None
    """Id of the call that `visible` refers to; absent if the session has no calls."""
