"""Types of `visibility`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from palimpsest._model import Model


class HideIn(TypedDict, total=False):
    """Target to hide: one event by its seq, or all events in the context that concern a path."""

    seq: int | None
    """Seq of the event."""
    path: str | None
    """Path, exactly as the events or the arguments of their tool calls name it."""
    replacement: str | None
    """Text to show instead; for several events with the same path, only the first shows it. Default: nothing, or a
    line that says so where the provider requires content.
    """


@dataclass(frozen=True, kw_only=True)
class RefusedOut(Model):
    """A refused item, with the reason."""

    action: Literal["hide", "show", "pin", "unpin"]
    """Action that was requested."""
    seq: int | None
    """Seq of the event; null if the target was a path without events."""
    path: str | None
    """Path of the target, as given; null if it was given by seq."""
    reason: Literal[
        "unknown",
        "protocol",
        "open_call",
        "protected",
        "hidden",
        "folded",
        "dropped",
        "too_old",
        "not_worth_it",
        "no_room",
    ]
    """Reason: `unknown` (no such event in this view), `protocol` (the provider would reject the rest), `open_call`
    (the tool call has no result yet), `protected` (pinned, or the running turn's user message), `hidden` (show
    it first), `folded` (a summary covers it), `dropped` (it was left out; recall it instead), `too_old` (too
    much of the cached prefix follows it), `not_worth_it` (hiding it would cost more than it saves), `no_room`
    (it does not fit the budget).
    """
    detail: str
    """Human-readable explanation of the reason."""


class TargetIn(TypedDict, total=False):
    """Target of a decision: one event by its seq, or all events in the context that concern a path. Exactly one of
    the two must be given.
    """

    seq: int | None
    """Seq of the event."""
    path: str | None
    """Path, exactly as the events or the arguments of their tool calls name it."""


@dataclass(frozen=True, kw_only=True)
class VisibilityOut(Model):
    """Result of a visibility request: the events that are now as requested, and the refused items."""

    session: str
    """Id of the session, chosen by the client."""
    head: int
    """Seq of the last event in the log when the decisions were taken."""
    decisions: int
    """Number of requests so far that changed the visibility of the session's events, including this one if it did."""
    hidden: list[int]
    """Seqs of the events that are hidden as requested."""
    shown: list[int]
    """Seqs of the events that are shown as requested."""
    pinned: list[int]
    """Seqs of the events that are pinned as requested."""
    unpinned: list[int]
    """Seqs of the events that are unpinned as requested."""
    refused: list[RefusedOut]
    """Items that were refused, with the reasons."""
