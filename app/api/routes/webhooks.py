"""Webhooks that are notified of compactions, and their deliveries."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Path, Query, Response

from app.api.schemas.webhooks import (
    DeliveryOut,
    DeliveryPage,
    DeliveryState,
    WebhookIn,
    WebhookMade,
    WebhookOut,
    WebhookPage,
)
from app.http import paging
from app.http.fields import Cursor, Limit
from app.http.key_prefix import PrefixAccess
from app.http.operation import Resource, Who, service
from app.services.webhooks import Webhooks
from app.store.webhooks import DeliveryRow, WebhookRow

router = Resource("webhooks")

NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
Name = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the webhook, chosen by the client.")]


Service = Annotated[Webhooks, Depends(service(Webhooks))]


@router.operation(
    "PUT",
    "/v1/webhooks/{name}",
    scope="admin",
    access=PrefixAccess.TENANT,
    summary="Create or change a webhook",
    returns=WebhookMade,
    also=(201,),
)
async def put_webhook(
    name: Name, body: WebhookIn, response: Response, who: Who, webhooks: Service
) -> Mapping[str, Any]:
    """Create a webhook (201) or change one (200): a URL that is notified of events in all sessions of the tenant.

    After a change, pending deliveries go to the new URL.
    """
    row, made, secret = await webhooks.put(who.tenant_id, name, url=body.url, events=body.events, secret=body.secret)
    response.status_code = 201 if made else 200
    return {**asdict(row), "secret": secret}


@router.operation("GET", "/v1/webhooks", scope="admin", access=PrefixAccess.TENANT, returns=WebhookPage)
async def list_webhooks(who: Who, webhooks: Service, limit: Limit = 50, cursor: Cursor = None) -> Mapping[str, Any]:
    """List the tenant's webhooks by name."""
    [after] = paging.decode_names(cursor, 1) or ("",)
    return paging.page(await webhooks.page(who.tenant_id, after, limit + 1), limit, lambda row: row.name)


@router.operation(
    "GET", "/v1/webhooks/{name}", scope="admin", access=PrefixAccess.TENANT, returns=WebhookOut, problems=("not-found",)
)
async def get_webhook(name: Name, who: Who, webhooks: Service) -> WebhookRow:
    """Get a webhook, without its secret."""
    return await webhooks.find(who.tenant_id, name)


@router.operation(
    "DELETE",
    "/v1/webhooks/{name}",
    scope="admin",
    access=PrefixAccess.TENANT,
    status=204,
    problems=("not-found",),
    response_class=Response,
)
async def delete_webhook(name: Name, who: Who, webhooks: Service) -> None:
    """Delete a webhook and its deliveries; pending ones are not attempted."""
    await webhooks.delete(who.tenant_id, name)


@router.operation(
    "GET",
    "/v1/webhooks/{name}/deliveries",
    scope="admin",
    access=PrefixAccess.TENANT,
    returns=DeliveryPage,
    problems=("not-found",),
)
async def list_deliveries(
    name: Name,
    who: Who,
    webhooks: Service,
    state: Annotated[
        DeliveryState | None, Query(description="State: return only deliveries in it. Default: all.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the deliveries of a webhook, newest first. Delivered and failed ones are kept for 30 days."""
    rows = await webhooks.deliveries(
        who.tenant_id, name, state=state, after=paging.decode_date_and_id(cursor), limit=limit + 1
    )
    return paging.page(rows, limit, lambda row: (row.created_at, row.id))


@router.operation(
    "POST",
    "/v1/webhooks/{name}/deliveries/{delivery_id}:retry",
    scope="admin",
    access=PrefixAccess.TENANT,
    returns=DeliveryOut,
    status=202,
    problems=("not-found", "conflict"),
)
async def retry_delivery(
    name: Name, delivery_id: Annotated[UUID, Path(description="Id of the delivery.")], who: Who, webhooks: Service
) -> DeliveryRow:
    """Attempt a failed or pending delivery now, and reset its number of attempts."""
    return await webhooks.retry(who.tenant_id, name, delivery_id)
