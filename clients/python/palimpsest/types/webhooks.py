"""Types of `webhooks`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class DeliveryOut(Model):
    """A delivery: one event for one webhook, and the attempts to make it."""

    id: str
    """Id of the delivery, a UUID: its header `webhook-id`."""
    session: str
    """Id of the session, chosen by the client."""
    type: Literal["compaction.scheduled", "compaction.started", "compaction.finished", "compaction.failed"]
    """Type of the event."""
    state: Literal["pending", "delivered", "failed"]
    """State of the delivery: `pending` (to be attempted, again or for the first time), `delivered` or `failed`
    (given up).
    """
    attempts: int
    """Number of attempts made; a requested retry starts at 0 again."""
    next_attempt_at: datetime | None
    """Time of the next attempt; null if there will be none."""
    status: int | None
    """HTTP status of the response to the last attempt; null if there was none."""
    error: str | None
    """Reason why the last attempt failed; null if it succeeded or has not been made."""
    created_at: datetime
    """Time of creation."""
    finished_at: datetime | None
    """Time at which it was delivered or given up; null while pending."""


@dataclass(frozen=True, kw_only=True)
class DeliveryPage(Model):
    """A page of deliveries."""

    items: list[DeliveryOut]
    """Deliveries, newest first."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class WebhookMade(Model):
    """A webhook as it was just stored."""

    name: str
    """Name of the webhook, chosen by the client."""
    url: str
    """URL that is posted to."""
    events: list[Literal["compaction.scheduled", "compaction.started", "compaction.finished", "compaction.failed"]]
    """Types of events that are delivered."""
    created_at: datetime
    """Time of creation."""
    updated_at: datetime
    """Time of the last change."""
    secret: str | None
    """Random secret of a new webhook; only this response contains it. Null if the client gave one or the webhook
    already existed.
    """


@dataclass(frozen=True, kw_only=True)
class WebhookOut(Model):
    """A webhook, without its secret."""

    name: str
    """Name of the webhook, chosen by the client."""
    url: str
    """URL that is posted to."""
    events: list[Literal["compaction.scheduled", "compaction.started", "compaction.finished", "compaction.failed"]]
    """Types of events that are delivered."""
    created_at: datetime
    """Time of creation."""
    updated_at: datetime
    """Time of the last change."""


@dataclass(frozen=True, kw_only=True)
class WebhookPage(Model):
    """A page of webhooks."""

    items: list[WebhookOut]
    """Webhooks by name."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
