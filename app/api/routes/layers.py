"""Layers: what is shown behind the conversation while an agent works."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from app.api.auth import Caller, caller
from app.api.body import BodyRoute
from app.api.documents import problems
from app.api.routes.sessions import Sid
from app.api.schemas.live import LayerIn, LayerKind, LayerOut, LayersOut
from app.services.layers import Layers

router = APIRouter(tags=["layers"], route_class=BodyRoute)


async def service(request: Request) -> Layers:
    """The use cases behind these routes."""
    found: Layers = request.state.services.layers
    return found


Service = Annotated[Layers, Depends(service)]
Writer = Annotated[Caller, Depends(caller("ingest"))]


@router.get(
    "/v1/sessions/{sid}/layers",
    operation_id="get_layers",
    response_model=LayersOut,
    responses=problems("not-found", "invalid-request"),
)
async def get_layers(sid: Sid, who: Annotated[Caller, Depends(caller("read"))], layers: Service) -> Mapping[str, Any]:
    """The layers as the next context shows them."""
    return await layers.current(who.tenant_id, sid)


@router.put(
    "/v1/sessions/{sid}/layers/{kind}",
    operation_id="put_layer",
    response_model=LayerOut,
    responses=problems("not-found", "invalid-request"),
)
async def put_layer(sid: Sid, kind: LayerKind, body: LayerIn, who: Writer, layers: Service) -> Mapping[str, Any]:
    """Replace a layer whole. It stands behind the last cache breakpoint, counts against the target, and goes with the
    explicitly started turn it was put into, or when a turn is ended by request."""
    return await layers.put(who.tenant_id, sid, kind, body.content)


@router.delete(
    "/v1/sessions/{sid}/layers/{kind}",
    operation_id="delete_layer",
    status_code=204,
    responses=problems("not-found", "invalid-request"),
)
async def delete_layer(sid: Sid, kind: LayerKind, who: Writer, layers: Service) -> None:
    """Take a layer away, if it is there."""
    await layers.remove(who.tenant_id, sid, kind)
