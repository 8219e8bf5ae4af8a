"""Layers: content shown after the conversation while an agent works."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Path
from pydantic import BaseModel, Field

from app.http.fields import CreatedAt, Sid, StrictRequest, answer_of
from app.http.operation import Resource, Who, service
from app.resources.layers.service import Layers
from app.store.layers import StoredLayer

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


router = Resource("layers")

Kind = Annotated[
    LayerKind,
    Path(
        description="Kind of the layer: `sources` (sources that the agent works with) or `announce` (its announcements "
        "while it works)."
    ),
]
Service = Annotated[Layers, Depends(service(Layers))]


@router.operation("GET", "/v1/sessions/{sid}/layers", scope="read")
async def get_layers(sid: Sid, who: Who, layers: Service) -> LayersOut:
    """Get the layers that the next context shows."""
    found = {one.layer.kind: _out(one) for one in await layers.current(who.tenant_id, sid)}
    return LayersOut(sources=found.get("sources"), announce=found.get("announce"))


@router.operation("PUT", "/v1/sessions/{sid}/layers/{kind}", scope="ingest", summary="Set a layer")
async def put_layer(sid: Sid, kind: Kind, body: LayerIn, who: Who, layers: Service) -> LayerOut:
    """Set the content of a layer, replacing the previous content. Contexts show it after the last cache breakpoint.

    It is removed when a turn is ended by request, or with the turn it was set in if a `turn.start` began that turn.
    """
    return _out(await layers.put(who.tenant_id, sid, kind, body.content))


@router.operation("DELETE", "/v1/sessions/{sid}/layers/{kind}", scope="ingest", status=204)
async def delete_layer(sid: Sid, kind: Kind, who: Who, layers: Service) -> None:
    """Remove a layer. Nothing happens if there is none."""
    await layers.remove(who.tenant_id, sid, kind)


def _out(stored: StoredLayer) -> LayerOut:
    return answer_of(LayerOut, stored, stored.layer)
