"""Operations: liveness, readiness and metrics."""

import asyncio
import os
from typing import Final

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from app.api.documents import anyones
from app.api.measure import SHARED, WorkersCollector
from app.api.query import check_query
from app.core.errors import StoreUnavailable
from app.store import jobs, spending
from app.store.engine import Database
from app.version import VERSION

router = APIRouter(tags=["operations"], dependencies=[Depends(check_query)])

QUEUES_SECONDS: Final = 2.0
"""How long the database may take to report its queue; a scrape without these figures is better than a late one."""


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
    """Get metrics in Prometheus' text format. Those of the workers' queue are missing while the database is away.

    Where several processes answer on one port, these are the sums of all of them.
    """
    workers = await _workers(request.state.services.database)
    own = REGISTRY
    if SHARED in os.environ:
        own = CollectorRegistry()
        MultiProcessCollector(own)  # type: ignore[no-untyped-call]  # the library leaves it untyped
    return Response(generate_latest(own) + generate_latest(workers), media_type=CONTENT_TYPE_LATEST)


async def _workers(database: Database) -> CollectorRegistry:
    """Return the metrics of the queue and of spending, which all processes share; none if the database is away."""
    registry = CollectorRegistry()
    try:
        async with asyncio.timeout(QUEUES_SECONDS):
            registry.register(WorkersCollector(await jobs.queues(database), await spending.today(database)))
    except (StoreUnavailable, TimeoutError):
        pass
    return registry
