"""Types of `events`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class AppendedEvent(Model):
    """Place of an appended event in the log, and where it came from."""

    seq: int
    """Seq of the event: its position in the session's log, counted from 1."""
    id: str
    """Id of the event: the client's own, or the one that the server made."""
    turn: int
    """Number of the turn, counted from 1; 0 before the first turn."""
    tokens: int
    """Size of the event as appended, in tokens by the session's estimator."""
    index: int
    """Index, from 0, of the event or message of the request that it came from; one message may become several
    events.
    """


@dataclass(frozen=True, kw_only=True)
class Pressure(Model):
    """Pressure on the budget: how near the `main` view's context is to its target."""

    tokens: int
    """Estimated current size of the view's context, in tokens by the estimator."""
    budget: int
    """Maximum size of the context, in the same tokens: that of the view's last context, or before the first one
    that of policy and model.
    """
    ratio: float
    """`tokens` divided by `budget`; above 1 the next context must be reduced."""
    level: Literal["none", "soft", "hard"]
    """Level of pressure: `soft` from the policy's `soft_ratio` on, `hard` above the budget, else `none`."""


@dataclass(frozen=True, kw_only=True)
class AppendedOut(Model):
    """Result of an append."""

    session: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this is about: a path with it in place of the session's id always means this
    line.
    """
    head: int
    """Seq of the last event in the log after the append."""
    epoch: int
    """Number of the current epoch of the `main` view, 0 before its first context; after a new policy or an
    erasure, the one that its next context opens.
    """
    pressure: Pressure
    """Pressure on the `main` view's budget after the append."""
    events: list[AppendedEvent]
    """Events of the request in its order, including those already in the log."""


EventType = Literal[
    "system.prompt",
    "tools",
    "user.message",
    "assistant.message",
    "tool.call",
    "tool.result",
    "system.message",
    "agent.note",
    "turn.start",
    "turn.end",
    "announce",
]
"""Type of an event. The set is closed and part of the public contract."""


@dataclass(frozen=True, kw_only=True)
class EventOut(Model):
    """An event as it was logged, with its place in the log. If it was redacted, a notice replaces its content and
    `redacted` is true.
    """

    type: EventType
    """Type of the event: `system.prompt` and `tools` (the newest of each begins every context), `user.message`,
    `assistant.message`, `tool.call`, `tool.result`, `system.message` (within the conversation), `agent.note`,
    `announce`, `turn.start` and `turn.end` (only mark turns, never shown).
    """
    id: str | None = None
    """Client's own id of the event, unique in the session. Appending it again with the same content changes
    nothing. If omitted, the server makes one.
    """
    turn_id: str | None = None
    """Client's own name of the turn. A user message with the name of the running turn continues that turn instead
    of beginning another.
    """
    author: str | None = None
    """Name of the agent that said or did it, which a policy's `authors` select by. Events without an author are
    never excluded by that.
    """
    content: str | list[dict[str, Any]] | None = None
    """Text, or a list of parts: objects with a `type` such as `text`, `image` or `reasoning`; a provider's own
    parts are kept as they are. Of `tools`: the tool definitions, as a list or its JSON text.
    """
    call_id: str | None = None
    """Id of the tool call; on a `tool.result`, the id of an earlier call without a result."""
    tool: str | None = None
    """Name of the tool. If omitted on a `tool.result`, it is that of the call."""
    arguments: Any = None
    """Arguments of a `tool.call`: an object, or the JSON text of one. Whatever a model wrote is accepted, valid or
    not.
    """
    is_error: bool | None = None
    """Whether a tool result reports a failure."""
    path: str | None = None
    """Path of the file that the event is about; recall, hiding and `supersedes` find the event by it."""
    mime: str | None = None
    """Media type of that file, such as `text/csv`."""
    pinned: bool | None = None
    """Whether every context must show the event, whatever the budget."""
    ttl_turns: int | None = None
    """Number of turns, counting its own, after which the event expires. If omitted, turns do not matter."""
    ttl_seconds: int | None = None
    """Number of seconds after `occurred_at` at which the event expires. If omitted, time does not matter."""
    replacement: str | None = None
    """Text to show in place of the event once it has expired, and to summarize instead of it; ignored on a
    `tool.call`. If omitted, a stub replaces an expired tool result, and other expired events are left out.
    """
    supersedes: str | None = None
    """Key of what this event replaces: earlier events with the same `supersedes`, or with it as their `id` or
    `path`, expire.
    """
    occurred_at: datetime | str | float | None = None
    """Time at which it happened, in ISO 8601. A value that is not a time is kept but not used. Default: the time
    of the append.
    """
    metadata: dict[str, Any] | None = None
    """Client's own data about the event; it is stored and never shown to a model."""
    native: dict[str, Any] | None = None
    """What only the provider's format can express, kept so that rendering in that format gives back what was
    appended. Present if the event came as a message. Send it only as it was read from a log, to write that log
    again; to append a provider's messages, post them as messages.
    """
    seq: int
    """Seq of the event: its position in the session's log, counted from 1."""
    turn: int
    """Number of the turn, counted from 1; 0 before the first turn."""
    tokens: int
    """Size of the event as appended, in tokens by the session's estimator."""
    created_at: datetime
    """Time at which it was created."""
    redacted: bool | None = None
    """True if the content was erased on request; absent otherwise."""


@dataclass(frozen=True, kw_only=True)
class EventPage(Model):
    """A page of a session's log."""

    items: list[EventOut]
    """Events in the order of their seqs, without gaps."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class LoggedEvent(Model):
    """Place of an appended event in the log."""

    seq: int
    """Seq of the event: its position in the session's log, counted from 1."""
    id: str
    """Id of the event: the client's own, or the one that the server made."""
    turn: int
    """Number of the turn, counted from 1; 0 before the first turn."""
    tokens: int
    """Size of the event as appended, in tokens by the session's estimator."""


class _EventInRequired(TypedDict):
    type: EventType
    """Type of the event: `system.prompt` and `tools` (the newest of each begins every context), `user.message`,
    `assistant.message`, `tool.call`, `tool.result`, `system.message` (within the conversation), `agent.note`,
    `announce`, `turn.start` and `turn.end` (only mark turns, never shown).
    """


class EventIn(_EventInRequired, total=False):
    """An event to append. A `tool.call` needs `call_id` and `tool`, a `tool.result` needs `call_id`; all other
    types but `turn.start` and `turn.end` need `content`.
    """

    id: str | None
    """Client's own id of the event, unique in the session. Appending it again with the same content changes
    nothing. If omitted, the server makes one.
    """
    turn_id: str | None
    """Client's own name of the turn. A user message with the name of the running turn continues that turn instead
    of beginning another.
    """
    author: str | None
    """Name of the agent that said or did it, which a policy's `authors` select by. Events without an author are
    never excluded by that.
    """
    content: str | list[dict[str, Any]] | None
    """Text, or a list of parts: objects with a `type` such as `text`, `image` or `reasoning`; a provider's own
    parts are kept as they are. Of `tools`: the tool definitions, as a list or its JSON text.
    """
    call_id: str | None
    """Id of the tool call; on a `tool.result`, the id of an earlier call without a result."""
    tool: str | None
    """Name of the tool. If omitted on a `tool.result`, it is that of the call."""
    arguments: Any
    """Arguments of a `tool.call`: an object, or the JSON text of one. Whatever a model wrote is accepted, valid or
    not.
    """
    is_error: bool | None
    """Whether a tool result reports a failure."""
    path: str | None
    """Path of the file that the event is about; recall, hiding and `supersedes` find the event by it."""
    mime: str | None
    """Media type of that file, such as `text/csv`."""
    pinned: bool | None
    """Whether every context must show the event, whatever the budget."""
    ttl_turns: int | None
    """Number of turns, counting its own, after which the event expires. If omitted, turns do not matter."""
    ttl_seconds: int | None
    """Number of seconds after `occurred_at` at which the event expires. If omitted, time does not matter."""
    replacement: str | None
    """Text to show in place of the event once it has expired, and to summarize instead of it; ignored on a
    `tool.call`. If omitted, a stub replaces an expired tool result, and other expired events are left out.
    """
    supersedes: str | None
    """Key of what this event replaces: earlier events with the same `supersedes`, or with it as their `id` or
    `path`, expire.
    """
    occurred_at: str | datetime | str | float | None
    """Time at which it happened, in ISO 8601. A value that is not a time is kept but not used. Default: the time
    of the append.
    """
    metadata: dict[str, Any] | None
    """Client's own data about the event; it is stored and never shown to a model."""
    native: dict[str, Any] | None
    """What only the provider's format can express, kept so that rendering in that format gives back what was
    appended. Present if the event came as a message. Send it only as it was read from a log, to write that log
    again; to append a provider's messages, post them as messages.
    """
