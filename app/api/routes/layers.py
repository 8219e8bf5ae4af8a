"""Layers: content shown after the conversation while an agent works."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response

from app.api.auth import Caller, require_scope
from app.api.body import BodyRoute
from app.api.openapi import problems
from app.api.routes.sessions import Sid
from app.api.schemas.live import LayerIn, LayerKind, LayerOut, LayersOut
from app.api.service import service
from app.core.log.events import LAYERS
from app.services.layers import Layers
from app.store.layers import StoredLayer

router = APIRouter(tags=["layers"], route_class=BodyRoute)


Kind = Annotated[
    LayerKind,
    Path(
        description="Kind of the layer: `sources` (sources that the agent works with) or `announce` (its announcements "
        "while it works)."
    ),
]
Service = Annotated[Layers, Depends(service(Layers))]
Writer = Annotated[Caller, Depends(require_scope("ingest"))]


@router.get(
    "/v1/sessions/{sid}/layers",
    operation_id="get_layers",
    response_model=LayersOut,
    responses=problems("not-found"),
)
async def get_layers(
    sid: Sid, who: Annotated[Caller, Depends(require_scope("read"))], layers: Service
) -> Mapping[str, Any]:
    """Get the layers that the next context shows."""
    found = {one.layer.kind: _out(one) for one in await layers.current(who.tenant_id, sid)}
    return {kind: found.get(kind) for kind in LAYERS}


@router.put(
    "/v1/sessions/{sid}/layers/{kind}",
    operation_id="put_layer",
    summary="Set a layer",
    response_model=LayerOut,
    responses=problems("not-found"),
)
async def put_layer(sid: Sid, kind: Kind, body: LayerIn, who: Writer, layers: Service) -> Mapping[str, Any]:
    """Set the content of a layer, replacing the previous content. Contexts show it after the last cache breakpoint.

    It is removed when a turn is ended by request, or with the turn it was set in if a `turn.start` began that turn.
    """
    return _out(await layers.put(who.tenant_id, sid, kind, body.content))


@router.delete(
    "/v1/sessions/{sid}/layers/{kind}",
    operation_id="delete_layer",
    status_code=204,
    response_class=Response,
    responses=problems("not-found"),
)
async def delete_layer(sid: Sid, kind: Kind, who: Writer, layers: Service) -> None:
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
