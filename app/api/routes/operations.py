"""Operations: liveness, readiness and metrics."""

import asyncio
import math
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app.api.documents import anyones
from app.api.measure import JOBS, OVERDUE, SUMMARIZER_REFUSED, SUMMARIZER_TOKENS
from app.core.errors import StoreUnavailable
from app.store import jobs, spending
from app.store.engine import Database
from app.version import VERSION

router = APIRouter(tags=["operations"])

QUEUES_SECONDS: Final = 2.0
"""What the database is given to tell of its queue; a scrape goes without rather than late."""


@router.get("/healthz", operation_id="healthz", summary="Liveness", responses=anyones())
async def healthz() -> dict[str, str]:
    """Check that the process is up, without asking the database."""
    return {"status": "ok", "service": "palimpsest", "version": VERSION}


@router.get("/readyz", operation_id="readyz", summary="Readiness", responses=anyones("store-unavailable"))
async def readyz(request: Request) -> dict[str, str]:
    """Check that requests can be served: the database answers, and has not just refused a write for lack of space."""
    await request.state.services.database.ready()
    return {"status": "ready"}


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Metrics in Prometheus' text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **anyones("not-local", "store-unavailable"),
    },
)
async def metrics(request: Request) -> Response:
    """Get metrics in Prometheus' text format. Those of the workers' queue are missing while the database is away."""
    await _look_at_workers(request.state.services.database)
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


async def _look_at_workers(database: Database) -> None:
    JOBS.clear()
    OVERDUE.clear()
    SUMMARIZER_TOKENS.clear()
    SUMMARIZER_REFUSED.set(math.nan)
    try:
        async with asyncio.timeout(QUEUES_SECONDS):
            queues = await jobs.queues(database)
            today = await spending.today(database)
    except (StoreUnavailable, TimeoutError):
        return
    for queue in queues:
        JOBS.labels(queue.kind, "waiting").set(queue.waiting)
        JOBS.labels(queue.kind, "running").set(queue.running)
        OVERDUE.labels(queue.kind).set(queue.overdue_seconds)
    SUMMARIZER_TOKENS.labels("spent").set(today.spent)
    SUMMARIZER_TOKENS.labels("reserved").set(today.reserved)
    SUMMARIZER_REFUSED.set(today.refused)
