"""Retention: set, read and preview the rules."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends

from app.api.schemas.retention import RetentionIn, RetentionOut, RetentionPreview
from app.core.log.turns import Lifetimes
from app.http import paging
from app.http.fields import Cursor, Limit
from app.http.key_prefix import PrefixAccess
from app.http.operation import Resource, Who, service
from app.services.retention import RetentionRules
from app.store.retention import RetentionRow

router = Resource("retention")

Service = Annotated[RetentionRules, Depends(service(RetentionRules))]


@router.operation("PUT", "/v1/retention", scope="admin", access=PrefixAccess.TENANT, returns=RetentionOut)
async def put_retention(body: RetentionIn, who: Who, retention: Service) -> Mapping[str, Any]:
    """Set how many days the tenant's data is kept. A worker erases older data once an hour."""
    return _out(await retention.put(who.tenant_id, Lifetimes(**body.model_dump())))


@router.operation("GET", "/v1/retention", scope="admin", access=PrefixAccess.TENANT, returns=RetentionOut)
async def get_retention(who: Who, retention: Service) -> Mapping[str, Any]:
    """Get how many days the tenant's data is kept."""
    return _out(await retention.get(who.tenant_id))


@router.operation("GET", "/v1/retention:preview", scope="admin", access=PrefixAccess.TENANT, returns=RetentionPreview)
async def preview_retention(
    who: Who, retention: Service, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """Preview the rules: list the data that they would erase now. Nothing is erased."""
    found = await retention.preview(who.tenant_id, limit, paging.decode_date_and_id(cursor))
    place = None if found.next is None else paging.encode(found.next)
    return {"rules": found.rules, "items": found.items, "next_cursor": place}


def _out(row: RetentionRow) -> Mapping[str, Any]:
    return {**asdict(row.rules), "updated_at": row.updated_at}
