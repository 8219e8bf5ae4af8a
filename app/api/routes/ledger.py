"""The ledger: what the provider's cache should have done, what it did, and what that cost."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from app.api import paging
from app.api.auth import Caller, caller
from app.api.documents import problems
from app.api.routes.sessions import Limit, Sid
from app.api.routes.summaries import View
from app.api.schemas.common import Moment
from app.api.schemas.ledger import AuditLedgerOut, LedgerOut
from app.services.ledger import Ledger

router = APIRouter(tags=["audit"])


async def _ledger(request: Request) -> Ledger:
    found: Ledger = request.state.services.ledger
    return found


Service = Annotated[Ledger, Depends(_ledger)]


@router.get(
    "/v1/sessions/{sid}/ledger",
    operation_id="get_ledger",
    response_model=LedgerOut,
    responses=problems("not-found", "invalid-request"),
)
async def get_ledger(
    sid: Sid,
    who: Annotated[Caller, Depends(caller("read"))],
    ledger: Service,
    view: View = "main",
    limit: Limit = 100,
    cursor: str | None = None,
) -> Mapping[str, Any]:
    """Where the bill of a view comes from: its calls, the newest first, its epochs' cost and gain, and the totals."""
    made = await ledger.of_view(who.tenant_id, sid, view, paging.identified(cursor), limit)
    calls = made["calls"]
    return {**made, "next_cursor": paging.encode(calls[-1]["call_id"]) if len(calls) == limit else None}


@router.get(
    "/v1/audit/ledger",
    operation_id="get_audit_ledger",
    response_model=AuditLedgerOut,
    responses=problems("invalid-request"),
)
async def get_audit_ledger(
    who: Annotated[Caller, Depends(caller("audit"))],
    ledger: Service,
    since: Annotated[Moment, Query(description="Calls made at or after this time.")],
    until: Annotated[Moment | None, Query(description="And before this; at most and by default 31 days on.")] = None,
    model: Annotated[str | None, Query(min_length=1, max_length=256, description="Only this model's.")] = None,
) -> Mapping[str, Any]:
    """What the calls of all sessions took that the key is for, by model."""
    return await ledger.of_tenant(who.tenant_id, since, until, model, who.session_prefix)
