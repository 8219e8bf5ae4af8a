"""Erasures of all sessions that match a filter: create, preview and read them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Path, Response

from app.api.schemas.erasures import (
    ErasedSessionPage,
    ErasureIn,
    ErasureOut,
    ErasurePage,
    ErasurePreview,
    NewErasureIn,
)
from app.http import paging
from app.http.fields import Cursor, Limit
from app.http.idempotency import Key
from app.http.key_prefix import PrefixAccess
from app.http.operation import Resource, Who, service
from app.services.erasures import ErasureRequest, Erasures, ErasureState

router = Resource("retention")

Service = Annotated[Erasures, Depends(service(Erasures))]
ErasureId = Annotated[UUID, Path(description="Id of the erasure.")]


@router.operation(
    "POST",
    "/v1/erasures",
    scope="admin",
    access=PrefixAccess.TENANT,
    returns=ErasureOut,
    status=202,
    also=(200,),
    problems=("idempotency-conflict", "erasure-count-conflict"),
)
async def create_erasure(
    body: NewErasureIn, response: Response, who: Who, erasures: Service, key: Key = None
) -> Mapping[str, Any]:
    """Erase all sessions that meet the conditions, with everything derived from them. This cannot be undone.

    A worker erases them one by one; get the erasure for its progress and, at the end, its receipt. Sessions created
    after the request are not erased. Repeating the request with its `Idempotency-Key` returns the same erasure in its
    current state (200).
    """
    state, new = await erasures.create(who.tenant_id, replace(_asked(body), expected=body.expected), who.key_id, key)
    response.status_code = 202 if new else 200
    return _out(state)


@router.operation("POST", "/v1/erasures:preview", scope="admin", access=PrefixAccess.TENANT, returns=ErasurePreview)
async def preview_erasure(
    body: ErasureIn, who: Who, erasures: Service, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """Preview an erasure: list the sessions that it would erase now. Nothing is erased."""
    found = await erasures.preview(who.tenant_id, _asked(body), limit, paging.decode_date_and_id(cursor))
    place = None if found.next is None else paging.encode(found.next)
    counts = {"sessions": found.sessions, "kept": found.kept, "more": found.more}
    return {**counts, "items": found.items, "next_cursor": place}


@router.operation(
    "GET",
    "/v1/erasures/{erasure_id}",
    scope="admin",
    access=PrefixAccess.TENANT,
    returns=ErasureOut,
    problems=("not-found",),
)
async def get_erasure(erasure_id: ErasureId, who: Who, erasures: Service) -> Mapping[str, Any]:
    """Get an erasure: its progress or, once it is done, its receipt."""
    return _out(await erasures.get(who.tenant_id, erasure_id))


@router.operation("GET", "/v1/erasures", scope="admin", access=PrefixAccess.TENANT, returns=ErasurePage)
async def list_erasures(who: Who, erasures: Service, limit: Limit = 50, cursor: Cursor = None) -> Mapping[str, Any]:
    """List the tenant's erasures, newest first."""
    found = await erasures.page(who.tenant_id, paging.decode_id(cursor), limit + 1)
    return paging.page([_out(one) for one in found], limit, lambda one: one["id"])


@router.operation(
    "GET",
    "/v1/erasures/{erasure_id}/sessions",
    scope="admin",
    access=PrefixAccess.TENANT,
    returns=ErasedSessionPage,
    problems=("not-found",),
)
async def list_erased_sessions(
    erasure_id: ErasureId, who: Who, erasures: Service, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the sessions that an erasure has erased so far, by UUIDs derived from their names."""
    found = await erasures.sessions(who.tenant_id, erasure_id, paging.decode_id(cursor), limit + 1)
    return paging.page(found, limit, lambda one: one.session_id)


def _asked(body: ErasureIn) -> ErasureRequest:
    return ErasureRequest(body.metadata, body.model, body.since, body.until, body.forks == "erase")


def _out(state: ErasureState) -> Mapping[str, Any]:
    row = state.row
    return {
        "id": row.id,
        "state": "running" if row.finished_at is None else "done",
        "tenant_id": row.tenant_id,
        "key_id": row.key_id,
        "filter_sha256": row.filter_sha256.hex(),
        "forks": "erase" if row.forks else "keep",
        "sessions": state.sessions,
        "kept": row.kept,
        "counts": row.counts,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }
