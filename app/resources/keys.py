"""API keys: create, list, revoke."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import Depends, Path
from pydantic import BaseModel, Field

from app.core.log.events import SESSION_ID_PATTERN
from app.http import paging
from app.http.auth import PrefixAccess
from app.http.fields import CreatedAt, Cursor, Id, Limit, Moment, StrictRequest, answer_of
from app.http.openapi import examples
from app.http.operation import Resource, Who, service
from app.store.keys import KeyRequest
from app.tenants import Tenants

Scope = Literal["ingest", "read", "audit", "admin"]

SCOPES: Final = (
    "Scopes of the key: `ingest` (append, change sessions, report outcomes), `read` (contexts, logs, records), `audit` "
    "(search across sessions), `admin` (all of these, erasure, policies, keys and webhooks)."
)


class KeyIn(StrictRequest):
    """Request for an API key for the caller's tenant."""

    model_config = examples(
        lambda: KeyIn(
            name="laptop of user 42",
            scopes=["ingest", "read"],
            expires_at=datetime(2027, 1, 1, tzinfo=UTC),
            session_prefix="user-42:",
        )
    )

    name: str = Field(
        min_length=1, max_length=128, description="Name of the key, which says its purpose; it need not be unique."
    )
    scopes: list[Scope] = Field(min_length=1, max_length=16, description=SCOPES)
    expires_at: Moment | None = Field(
        None, description="Time at which the key stops working, in the future. Default: never."
    )
    session_prefix: str | None = Field(
        None,
        pattern=SESSION_ID_PATTERN,
        description="Prefix of the ids of the sessions that the key can access; to its holder no others exist. "
        "Default: all sessions.",
    )


class KeyOut(BaseModel):
    """An API key, without its secret."""

    id: Id = Field(description="Id of the key, a UUID.")
    name: str = Field(description="Name of the key, which says its purpose.")
    scopes: list[Scope] = Field(description=SCOPES)
    session_prefix: str | None = Field(
        description="Prefix of the ids of the sessions that the key can access; null if it can access all."
    )
    created_at: CreatedAt
    expires_at: datetime | None = Field(description="Time at which the key stops working; null if never.")
    revoked_at: datetime | None = Field(description="Time at which the key was revoked; null if it was not.")
    last_used_at: datetime | None = Field(
        description="Time of the key's last use, exact to about a minute; null if it was never used."
    )


class KeyMade(KeyOut):
    """A newly created API key, with its secret."""

    secret: str = Field(
        description="Secret to send as `Authorization: Bearer <secret>`. Only this response contains it."
    )


KeyPage = paging.page_of(KeyOut, "A page of API keys.", "API keys, newest first, revoked and expired ones included.")

router = Resource("keys", scope="admin", access=PrefixAccess.WITHIN)

Service = Annotated[Tenants, Depends(service(Tenants))]


@router.operation("POST", "/v1/keys", status=201)
async def create_key(body: KeyIn, who: Who, tenants: Service) -> KeyMade:
    """Create an API key for the caller's tenant. It cannot access more sessions, or live longer, than the caller's key.

    Once there is a key, every request needs one. The first key must therefore have the scope `admin`, and neither
    `expires_at` nor `session_prefix`.
    """
    wanted = KeyRequest(body.name, list(dict.fromkeys(body.scopes)), body.expires_at, body.session_prefix)
    row, secret = await tenants.make_key(who, wanted)
    return answer_of(KeyMade, row, secret=secret)


@router.operation("GET", "/v1/keys", returns=KeyPage)
async def list_keys(who: Who, tenants: Service, limit: Limit = 50, cursor: Cursor = None) -> Mapping[str, Any]:
    """List the tenant's API keys, newest first. A key limited to a session prefix lists only keys within its prefix."""
    rows = await tenants.keys(who, paging.decode_date_and_id(cursor), limit + 1)
    return paging.page(rows, limit, lambda row: (row.created_at, row.id))


@router.operation("DELETE", "/v1/keys/{key_id}", status=204, problems=("not-found",))
async def revoke_key(key_id: Annotated[UUID, Path(description="Id of the key.")], who: Who, tenants: Service) -> None:
    """Revoke an API key: it stops working everywhere within two seconds, and stays in the list."""
    await tenants.revoke_key(who, key_id)
