"""Webhooks that are notified of compactions, and their deliveries."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Depends, Path, Query, Response
from pydantic import BaseModel, Field

from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import CreatedAt, Cursor, Id, Limit, SessionName, StrictRequest, UpdatedAt, answer_of
from app.http.openapi import examples
from app.http.operation import Resource, Who, service
from app.wings.webhooks.service import URL_CHARS_MAX, WebhookEvent, Webhooks
from app.wings.webhooks.store import DeliveryRow, WebhookRow

DeliveryState = Literal["pending", "delivered", "failed"]


class WebhookIn(StrictRequest):
    """A webhook: a URL that is notified of events in the tenant's sessions.

    A delivery is a POST of `{"type", "timestamp", "data"}` with `data` as in `CompactionChange`, signed as Standard
    Webhooks defines it: headers `webhook-id` (the same for every attempt), `webhook-timestamp`, `webhook-signature`.
    Every response other than 2xx is a failure, redirects included.
    """

    model_config = examples(
        lambda: WebhookIn(url="https://example.com/hooks", events=["compaction.started", "compaction.finished"])
    )

    url: str = Field(min_length=1, max_length=URL_CHARS_MAX, description="URL to post to, http or https.")
    events: list[WebhookEvent] = Field(min_length=1, max_length=16, description="Types of events to deliver.")
    secret: str | None = Field(
        None,
        max_length=128,
        description="Secret that signs deliveries: `whsec_` and 24 to 64 bytes in base64. Default: the current one, or "
        "a random one for a new webhook.",
    )


class WebhookOut(BaseModel):
    """A webhook, without its secret."""

    name: str = Field(description="Name of the webhook, chosen by the client.")
    url: str = Field(description="URL that is posted to.")
    events: list[WebhookEvent] = Field(description="Types of events that are delivered.")
    created_at: CreatedAt
    updated_at: UpdatedAt


class WebhookMade(WebhookOut):
    """A webhook as it was just stored."""

    secret: str | None = Field(
        description="Random secret of a new webhook; only this response contains it. Null if the client gave one or "
        "the webhook already existed."
    )


WebhookPage = paging.page_of(WebhookOut, "A page of webhooks.", "Webhooks by name.")


class DeliveryOut(BaseModel):
    """A delivery: one event for one webhook, and the attempts to make it."""

    id: Id = Field(description="Id of the delivery, a UUID: its header `webhook-id`.")
    session: SessionName
    type: WebhookEvent = Field(description="Type of the event.")
    state: DeliveryState = Field(
        description="State of the delivery: `pending` (to be attempted, again or for the first time), `delivered` or "
        "`failed` (given up)."
    )
    attempts: int = Field(description="Number of attempts made; a requested retry starts at 0 again.")
    next_attempt_at: datetime | None = Field(description="Time of the next attempt; null if there will be none.")
    status: int | None = Field(description="HTTP status of the response to the last attempt; null if there was none.")
    error: str | None = Field(
        description="Reason why the last attempt failed; null if it succeeded or has not been made."
    )
    created_at: CreatedAt
    finished_at: datetime | None = Field(description="Time at which it was delivered or given up; null while pending.")


DeliveryPage = paging.page_of(DeliveryOut, "A page of deliveries.", "Deliveries, newest first.")


router = Resource("webhooks", scope="admin", access=PrefixAccess.TENANT)

NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
Name = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the webhook, chosen by the client.")]


Service = Annotated[Webhooks, Depends(service(Webhooks))]


@router.operation("PUT", "/v1/webhooks/{name}", summary="Create or change a webhook", also=(201,))
async def put_webhook(name: Name, body: WebhookIn, response: Response, who: Who, webhooks: Service) -> WebhookMade:
    """Create a webhook (201) or change one (200): a URL that is notified of events in all sessions of the tenant.

    After a change, pending deliveries go to the new URL.
    """
    row, made, secret = await webhooks.put(who.tenant_id, name, url=body.url, events=body.events, secret=body.secret)
    response.status_code = 201 if made else 200
    return answer_of(WebhookMade, row, secret=secret)


@router.operation("GET", "/v1/webhooks", returns=WebhookPage)
async def list_webhooks(who: Who, webhooks: Service, limit: Limit = 50, cursor: Cursor = None) -> Mapping[str, Any]:
    """List the tenant's webhooks by name."""
    [after] = paging.decode_names(cursor, 1) or ("",)
    return paging.page(await webhooks.page(who.tenant_id, after, limit + 1), limit, lambda row: row.name)


@router.operation("GET", "/v1/webhooks/{name}", returns=WebhookOut, problems=("not-found",))
async def get_webhook(name: Name, who: Who, webhooks: Service) -> WebhookRow:
    """Get a webhook, without its secret."""
    return await webhooks.find(who.tenant_id, name)


@router.operation("DELETE", "/v1/webhooks/{name}", status=204, problems=("not-found",))
async def delete_webhook(name: Name, who: Who, webhooks: Service) -> None:
    """Delete a webhook and its deliveries; pending ones are not attempted."""
    await webhooks.delete(who.tenant_id, name)


@router.operation("GET", "/v1/webhooks/{name}/deliveries", returns=DeliveryPage, problems=("not-found",))
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
    returns=DeliveryOut,
    status=202,
    problems=("not-found", "conflict"),
)
async def retry_delivery(
    name: Name, delivery_id: Annotated[UUID, Path(description="Id of the delivery.")], who: Who, webhooks: Service
) -> DeliveryRow:
    """Attempt a failed or pending delivery now, and reset its number of attempts."""
    return await webhooks.retry(who.tenant_id, name, delivery_id)
