"""The ledger: expected and actual use of the provider's cache, and its cost."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query

from app.api.ledger_json import tenant_ledger_json, view_ledger_json
from app.api.schemas.ledger import AuditLedgerOut, LedgerOut
from app.http import paging
from app.http.fields import Cursor, Limit, Moment, Sid, ViewParameter
from app.http.key_prefix import PrefixAccess
from app.http.operation import Resource, Who
from app.http.past_reads import PastRead, past_read
from app.services.ledger import Ledger

router = Resource("audit")


Service = Annotated[PastRead[Ledger], Depends(past_read(Ledger))]


@router.operation("GET", "/v1/sessions/{sid}/ledger", scope="read", returns=LedgerOut, problems=("not-found",))
async def get_ledger(
    sid: Sid,
    who: Who,
    ledger: Service,
    view: ViewParameter = "main",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """Get the ledger of a view: the cost of each call, newest first, cost and gain of each epoch, and the totals."""
    before = paging.decode_id(cursor)
    found = await ledger(lambda own: own.view_ledger(who.tenant_id, sid, view, before, limit))
    made = view_ledger_json(found)
    return {**made, "next_cursor": None if found.ends else paging.encode(made["calls"][-1]["call_id"])}


@router.operation(
    "GET",
    "/v1/audit/ledger",
    scope="audit",
    access=PrefixAccess.WITHIN,
    summary="Get the ledger of all sessions",
    returns=AuditLedgerOut,
)
async def get_audit_ledger(
    who: Who,
    ledger: Service,
    since: Annotated[Moment, Query(description="Earliest time of the calls, inclusive, in ISO 8601.")],
    until: Annotated[
        Moment | None,
        Query(
            description="Latest time of the calls, exclusive, in ISO 8601, at most 31 days after `since`. Default: 31 "
            "days after it."
        ),
    ] = None,
    model: Annotated[
        str | None, Query(min_length=1, max_length=256, description="Name of a model: include only its calls.")
    ] = None,
) -> Mapping[str, Any]:
    """Get the token usage and price of the calls of all sessions that the key can access, by model."""
    found = await ledger(lambda own: own.tenant_ledger(who.tenant_id, since, until, model, who.session_prefix))
    return tenant_ledger_json(found)
