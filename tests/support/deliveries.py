"""A worker's work with webhook deliveries that are retried soon."""

from dataclasses import replace

from app.wings.webhooks.jobs import Deliveries, Poster
from app.worker import Work


def retrying(work: Work, delays: tuple[float, ...], seconds: float = 5.0, make: type[Deliveries] = Deliveries) -> Work:
    """Replace the deliveries of `work` by ones that are retried after `delays` and give receivers `seconds`."""
    others = [one for one in work.jobs if one.__module__ != "app.wings.webhooks"]
    return replace(work, jobs=[*others, lambda database: make(database, Poster(seconds), None, delays)])
