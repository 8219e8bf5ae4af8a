"""For operators: is it alive, is it ready, how is it doing."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app.version import VERSION

router = APIRouter(tags=["operations"])


@router.get("/healthz", operation_id="healthz")
async def healthz() -> dict[str, str]:
    """The process is up. Asks nothing of the database."""
    return {"status": "ok", "service": "palimpsest", "version": VERSION}


@router.get("/readyz", operation_id="readyz", responses={503: {"description": "The database cannot be reached"}})
async def readyz(request: Request) -> dict[str, str]:
    """Requests can be served: the database answers."""
    await request.state.services.database.fetchrow("SELECT 1")
    return {"status": "ready"}


@router.get("/metrics", operation_id="metrics", response_class=Response)
async def metrics() -> Response:
    """Prometheus' text format."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
