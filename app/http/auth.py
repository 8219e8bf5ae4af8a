"""Authenticate by bearer key."""

from collections.abc import Collection

from fastapi import Request

from app.http.access import bind_caller
from app.http.concurrency import slot_of
from app.services.tenants import Caller, Tenants
from app.store.engine import act_for
from app.store.texts import ContentCiphers, seal_with


class Unauthorized(Exception):
    """The request has no key, or an invalid one."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Forbidden(Exception):
    """The key is valid, but not for this operation."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


async def authenticate_bearer(request: Request, scope: str) -> Caller:
    """Authenticate by bearer key. From then on the request acts for the caller's tenant, whose contents are open.

    Raises Unauthorized, Forbidden, TooManyRequests or ContentsErased.
    """
    header = request.headers.get("authorization")
    if header is not None and not header.lower().startswith("bearer "):
        raise Unauthorized("the Authorization header must be 'Bearer <key>'")
    secret = None if header is None else header[7:].strip()
    who = await authenticate(request, secret, (scope,), "Authorization: Bearer <key>")
    await bind_content_key(request, who)
    return who


async def authenticate(request: Request, secret: str | None, scopes: Collection[str], how: str) -> Caller:
    """Authenticate the holder of a key with all of these scopes, and make the request act for its tenant.

    Neither checks the key's session prefix nor opens contents (`bind_content_key`). `how` tells a caller without a key
    how to send one. Raises Unauthorized, Forbidden or TooManyRequests.
    """
    tenants: Tenants = request.state.services.tenants
    found = await tenants.authenticate(secret)
    if found is None:
        raise Unauthorized("this key is not valid" if secret else f"a key is required: {how}")
    for scope in scopes:
        if not found.has_scope(scope):
            raise Forbidden(f"this key lacks the scope {scope!r}")
    place = slot_of(request.scope)
    if place is not None:
        place.assign_tenant(found.tenant_id)
    act_for(found.tenant_id)
    bind_caller(request.scope, found.tenant_id)
    return found


async def bind_content_key(request: Request, who: Caller) -> None:
    """Seal and open the contents of this request with the cipher of its tenant, if it has one.

    Raises ContentsErased or StoreUnavailable.
    """
    ciphers: ContentCiphers = request.state.services.ciphers
    seal_with(await ciphers.cipher(who.tenant_id))
