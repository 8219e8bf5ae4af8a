"""Types of `layers`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class LayerOut(Model):
    """A layer: content shown at the end of every context and not part of the log."""

    kind: Literal["sources", "announce"]
    """Kind of the layer."""
    version: int
    """Version of the layer; each change of any layer of the session takes the next number."""
    content: str | list[dict[str, Any]]
    """Text, or a list of parts as in an event's `content`."""
    tokens: int
    """Size of the layer as shown, in tokens by the session's estimator."""
    turn: int | None
    """Number of the turn with which the layer ends, if it was set during a turn begun by a `turn.start`; null if
    it stays until it is removed, or a turn is ended by request.
    """
    created_at: datetime
    """Time of creation."""


@dataclass(frozen=True, kw_only=True)
class LayersOut(Model):
    """Layers that the next context shows after the conversation, in this order."""

    sources: LayerOut | None
    """Sources that the agent works with; null if the layer is not set."""
    announce: LayerOut | None
    """Announcements of the agent while it works; null if the layer is not set."""
