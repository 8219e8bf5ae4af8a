"""Webhooks and their deliveries."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.core.network.webhooks import URL_CHARS_MAX, WebhookEvent
from app.http.fields import CreatedAt, Id, NextCursor, SessionName, StrictRequest, UpdatedAt

DeliveryState = Literal["pending", "delivered", "failed"]


class WebhookIn(StrictRequest):
    """A webhook: a URL that is notified of events in the tenant's sessions.

    A delivery is a POST of `{"type", "timestamp", "data"}` with `data` as in `CompactionChange`, signed as Standard
    Webhooks defines it: headers `webhook-id` (the same for every attempt), `webhook-timestamp`, `webhook-signature`.
    Every response other than 2xx is a failure, redirects included.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"url": "https://example.com/hooks", "events": ["compaction.started", "compaction.finished"]}]
        },
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


class WebhookPage(BaseModel):
    """A page of webhooks."""

    items: list[WebhookOut] = Field(description="Webhooks by name.")
    next_cursor: NextCursor


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


class DeliveryPage(BaseModel):
    """A page of deliveries."""

    items: list[DeliveryOut] = Field(description="Deliveries, newest first.")
    next_cursor: NextCursor
