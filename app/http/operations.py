"""Operations: liveness and readiness."""

from fastapi import APIRouter, Depends, Request

from app.http.openapi import open_problems
from app.http.past_reads import past_reads
from app.http.query import check_query
from app.version import VERSION

router = APIRouter(tags=["operations"], dependencies=[Depends(check_query)])


@router.head("/healthz", include_in_schema=False)  # monitors ask so
@router.get("/healthz", operation_id="healthz", summary="Liveness", responses=open_problems())
async def healthz() -> dict[str, str]:
    """Check that the process is running, without using the database."""
    return {"status": "ok", "service": "palimpsest", "version": VERSION}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", operation_id="readyz", summary="Readiness", responses=open_problems("store-unavailable"))
async def readyz(request: Request) -> dict[str, str]:
    """Check that requests can be served: the database responds, and has not just refused a write for lack of space.

    If there is a replica, `replica` is its state; the primary is used while the replica cannot be.
    """
    await request.state.services.database.ready()
    replica = past_reads(request).replica_state
    return {"status": "ready"} if replica is None else {"status": "ready", "replica": replica}
