"""Operations: liveness, readiness and metrics."""

import asyncio
import os
from typing import Final

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from app.api.metrics import set_pool_gauges
from app.api.worker_metrics import WorkersCollector, read_workers_state
from app.core.errors import StoreUnavailable
from app.http.openapi import open_problems
from app.http.past_reads import past_reads
from app.http.query import check_query
from app.store.engine import Database
from app.version import VERSION

router = APIRouter(tags=["operations"], dependencies=[Depends(check_query)])

SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which several processes share their metrics."""
WORKERS_SECONDS: Final = 2.0
"""The timeout for reading the workers' metrics; a scrape without these figures is better than a late one."""


@router.get("/healthz", operation_id="healthz", summary="Liveness", responses=open_problems())
async def healthz() -> dict[str, str]:
    """Check that the process is running, without using the database."""
    return {"status": "ok", "service": "palimpsest", "version": VERSION}


@router.get("/readyz", operation_id="readyz", summary="Readiness", responses=open_problems("store-unavailable"))
async def readyz(request: Request) -> dict[str, str]:
    """Check that requests can be served: the database responds, and has not just refused a write for lack of space.

    If there is a replica, `replica` is its state; the primary is used while the replica cannot be.
    """
    await request.state.services.database.ready()
    replica = past_reads(request).replica_state
    return {"status": "ready"} if replica is None else {"status": "ready", "replica": replica}


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Metrics in Prometheus' text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **open_problems("not-local", "store-unavailable"),
    },
)
async def metrics(request: Request) -> Response:
    """Get metrics in Prometheus' text format. Metrics of the workers are missing while the database is unreachable.

    If several processes serve one port, the metrics are those of all of them together.
    """
    database: Database = request.state.services.database
    workers = await _workers(database)
    set_pool_gauges(database)
    own = REGISTRY
    if SHARED in os.environ:
        own = CollectorRegistry()
        MultiProcessCollector(own)  # type: ignore[no-untyped-call]  # the library leaves it untyped
    return Response(generate_latest(own) + generate_latest(workers), media_type=CONTENT_TYPE_LATEST)


async def _workers(database: Database) -> CollectorRegistry:
    """Return the metrics of the workers, or none if the database is unreachable or too slow."""
    registry = CollectorRegistry()
    try:
        async with asyncio.timeout(WORKERS_SECONDS):
            registry.register(WorkersCollector(await read_workers_state(database)))
    except (StoreUnavailable, TimeoutError):
        pass
    return registry
