"""API keys: create, list, revoke."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Path, Response

from app.api import paging
from app.api.key_prefix import PrefixAccess
from app.api.operation import Resource, Who, service
from app.api.schemas.common import Cursor, Limit
from app.api.schemas.keys import KeyIn, KeyMade, KeyPage
from app.services.tenants import KeyRequest, Tenants

router = Resource("keys")


Service = Annotated[Tenants, Depends(service(Tenants))]


@router.operation("POST", "/v1/keys", scope="admin", access=PrefixAccess.WITHIN, returns=KeyMade, status=201)
async def create_key(body: KeyIn, who: Who, tenants: Service) -> Mapping[str, Any]:
    """Create an API key for the caller's tenant. It cannot access more sessions, or live longer, than the caller's key.

    Once there is a key, every request needs one. The first key must therefore have the scope `admin`, and neither
    `expires_at` nor `session_prefix`.
    """
    asked = KeyRequest(body.name, list(dict.fromkeys(body.scopes)), body.expires_at, body.session_prefix)
    row, secret = await tenants.make_key(who, asked)
    return {**asdict(row), "secret": secret}


@router.operation("GET", "/v1/keys", scope="admin", access=PrefixAccess.WITHIN, returns=KeyPage)
async def list_keys(who: Who, tenants: Service, limit: Limit = 50, cursor: Cursor = None) -> Mapping[str, Any]:
    """List the tenant's API keys, newest first. A key limited to a session prefix lists only keys within its prefix."""
    rows = await tenants.keys(who, paging.decode_date_and_id(cursor), limit + 1)
    return paging.page(rows, limit, lambda row: (row.created_at, row.id))


@router.operation(
    "DELETE",
    "/v1/keys/{key_id}",
    scope="admin",
    access=PrefixAccess.WITHIN,
    status=204,
    problems=("not-found",),
    response_class=Response,
)
async def revoke_key(key_id: Annotated[UUID, Path(description="Id of the key.")], who: Who, tenants: Service) -> None:
    """Revoke an API key: it stops working everywhere within two seconds, and stays in the list."""
    await tenants.revoke_key(who, key_id)
