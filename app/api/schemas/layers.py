"""Layers."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import CreatedAt, StrictRequest

LayerKind = Literal["sources", "announce"]


class LayerIn(StrictRequest):
    """Content of a layer, which replaces its previous content."""

    content: str | list[dict[str, Any]] = Field(description="Text, or a list of parts as in an event's `content`.")


class LayerOut(BaseModel):
    """A layer: content shown at the end of every context and not part of the log."""

    kind: LayerKind = Field(description="Kind of the layer.")
    version: int = Field(
        description="Version of the layer; each change of any layer of the session takes the next number."
    )
    content: str | list[dict[str, Any]] = Field(description="Text, or a list of parts as in an event's `content`.")
    tokens: int = Field(description="Size of the layer as shown, in tokens by the session's estimator.")
    turn: int | None = Field(
        description="Number of the turn with which the layer ends, if it was set during a turn begun by a "
        "`turn.start`; null if it stays until it is removed, or a turn is ended by request."
    )
    created_at: CreatedAt


class LayersOut(BaseModel):
    """Layers that the next context shows after the conversation, in this order."""

    sources: LayerOut | None = Field(description="Sources that the agent works with; null if the layer is not set.")
    announce: LayerOut | None = Field(
        description="Announcements of the agent while it works; null if the layer is not set."
    )
