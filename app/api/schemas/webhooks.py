"""Webhooks and their deliveries."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.common import Closed
from app.core.network.webhooks import URL_CHARS_MAX

WebhookEvent = Literal["compaction.scheduled", "compaction.started", "compaction.finished", "compaction.failed"]
DeliveryState = Literal["pending", "delivered", "failed"]


class WebhookIn(Closed):
    """Where to tell of what. A call is `{"type", "timestamp", "data"}`, `data` as a session's stream has it
    (`CompactionChange`), signed as Standard Webhooks says: `webhook-id` (the same at every attempt),
    `webhook-timestamp`, `webhook-signature`. Any answer but 2xx is a failure, redirects too."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"url": "https://example.com/hooks", "events": ["compaction.started", "compaction.finished"]}]
        },
    )

    url: str = Field(min_length=1, max_length=URL_CHARS_MAX, description="http or https.")
    events: list[WebhookEvent] = Field(min_length=1, max_length=16)
    secret: str | None = Field(
        None,
        max_length=128,
        description="`whsec_` and 24 to 64 bytes in base64. Without one it keeps its own; a new one gets a random one.",
    )


class WebhookOut(BaseModel):
    """A webhook. Its secret is not shown."""

    name: str
    url: str
    events: list[WebhookEvent]
    created_at: datetime
    updated_at: datetime


class WebhookMade(WebhookOut):
    """As it was stored; `secret` is shown this once, if it was made here."""

    secret: str | None


class WebhookPage(BaseModel):
    """By name."""

    items: list[WebhookOut]
    next_cursor: str | None


class DeliveryOut(BaseModel):
    """One call and what came of it. `id` is its `webhook-id`, `status` and `error` are those of the last attempt."""

    id: str
    session: str
    type: WebhookEvent
    state: DeliveryState
    attempts: int
    next_attempt_at: datetime | None
    status: int | None
    error: str | None
    created_at: datetime
    finished_at: datetime | None


class DeliveryPage(BaseModel):
    """The newest first."""

    items: list[DeliveryOut]
    next_cursor: str | None
