"""Webhooks that are notified of compactions."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from app.runtime.wing import MakeJobs, Wing

if TYPE_CHECKING:
    from app.http.operation import Resource
    from app.runtime.wiring import Services
    from app.store.engine import Database


class WebhookSettings(BaseModel):
    """Settings of webhooks."""

    webhook_timeout_seconds: float = Field(10.0, gt=0, description="Seconds that a webhook's receiver has to respond.")
    webhook_private_targets: bool | None = Field(
        None,
        description="Whether webhooks may call loopback and private addresses. Default: only webhooks that were created"
        " while no key was needed, and so from this machine, may do so.",
    )


def _services(settings: WebhookSettings, kernel: "Services") -> Iterable[object]:
    from app.wings.webhooks.service import Webhooks

    yield Webhooks(kernel.database, kernel.tenants, settings.webhook_private_targets)


def _routes(_: WebhookSettings) -> "Sequence[Resource]":
    from app.wings.webhooks.routes import router

    return [router]


def _jobs(settings: WebhookSettings) -> Sequence[MakeJobs]:
    from app.wings.webhooks.jobs import Deliveries, Poster

    def deliveries(database: "Database") -> Deliveries:
        return Deliveries(database, Poster(settings.webhook_timeout_seconds), settings.webhook_private_targets)

    return [deliveries]


WING = Wing(settings=WebhookSettings, services=_services, routes=_routes, jobs=_jobs)
