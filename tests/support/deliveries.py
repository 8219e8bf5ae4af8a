"""A worker's work with webhook deliveries that are retried soon."""

from dataclasses import replace

from app.wings.webhooks.jobs import Deliveries
from app.wings.webhooks.poster import Poster
from app.wings.webhooks.service import WebhookSender
from app.worker.run import Work


def retrying(
    work: Work, delays: tuple[float, ...], seconds: float = 5.0, sender: type[WebhookSender] = WebhookSender
) -> Work:
    """Replace the deliveries of `work` by ones that are retried after `delays` and give receivers `seconds`."""
    others = [make for make in work.jobs if make.__module__ != "app.wings.webhooks"]
    deliveries = lambda database: Deliveries(database, sender(database, Poster(seconds), None, delays))  # noqa: E731
    return replace(work, jobs=[*others, deliveries])
