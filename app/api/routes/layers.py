"""Layers: content shown after the conversation while an agent works."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Path, Response

from app.api.operation import Resource, Who, service
from app.api.schemas.common import Sid
from app.api.schemas.layers import LayerIn, LayerKind, LayerOut, LayersOut
from app.core.log.events import LAYERS
from app.services.layers import Layers
from app.store.layers import StoredLayer

router = Resource("layers")


Kind = Annotated[
    LayerKind,
    Path(
        description="Kind of the layer: `sources` (sources that the agent works with) or `announce` (its announcements "
        "while it works)."
    ),
]
Service = Annotated[Layers, Depends(service(Layers))]


@router.operation("GET", "/v1/sessions/{sid}/layers", scope="read", returns=LayersOut, problems=("not-found",))
async def get_layers(sid: Sid, who: Who, layers: Service) -> Mapping[str, Any]:
    """Get the layers that the next context shows."""
    found = {one.layer.kind: _out(one) for one in await layers.current(who.tenant_id, sid)}
    return {kind: found.get(kind) for kind in LAYERS}


@router.operation(
    "PUT",
    "/v1/sessions/{sid}/layers/{kind}",
    scope="ingest",
    summary="Set a layer",
    returns=LayerOut,
    problems=("not-found",),
)
async def put_layer(sid: Sid, kind: Kind, body: LayerIn, who: Who, layers: Service) -> Mapping[str, Any]:
    """Set the content of a layer, replacing the previous content. Contexts show it after the last cache breakpoint.

    It is removed when a turn is ended by request, or with the turn it was set in if a `turn.start` began that turn.
    """
    return _out(await layers.put(who.tenant_id, sid, kind, body.content))


@router.operation(
    "DELETE",
    "/v1/sessions/{sid}/layers/{kind}",
    scope="ingest",
    status=204,
    problems=("not-found",),
    response_class=Response,
)
async def delete_layer(sid: Sid, kind: Kind, who: Who, layers: Service) -> None:
    """Remove a layer. Nothing happens if there is none."""
    await layers.remove(who.tenant_id, sid, kind)


def _out(stored: StoredLayer) -> Mapping[str, Any]:
    layer = stored.layer
    return {
        "kind": layer.kind,
        "version": layer.version,
        "content": layer.content,
        "tokens": stored.tokens,
        "turn": layer.turn,
        "created_at": stored.created_at,
    }
