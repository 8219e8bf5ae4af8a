"""Authenticate by bearer key."""

from collections.abc import Awaitable, Callable, Collection
from functools import cache
from typing import Any, Final

from fastapi import Request

from app.api import addresses, key_prefix
from app.api.access import bind_caller
from app.api.concurrency import slot_of
from app.api.query import check_query
from app.services.tenants import Caller, Tenants
from app.store.engine import act_for
from app.store.sealing import seal_with

__all__ = [
    "Caller",
    "Forbidden",
    "Unauthorized",
    "authenticate",
    "bind_content_key",
    "is_authenticator",
    "require_scope",
]

Authenticator = Callable[[Request], Awaitable[Caller]]
_SCOPES: Final[dict[Any, str]] = {}


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


@cache
def require_scope(scope: str) -> Authenticator:
    """Return the dependency that authenticates a caller for `scope`, and makes the request act for its tenant.

    It also checks the key's session prefix and the query's parameters, and resolves the session in the path to a line.
    It raises Unauthorized, Forbidden, TooManyRequests, ContentsErased, OutOfReach, NotFound or InvalidRequest.
    """

    async def dependency(request: Request) -> Caller:
        header = request.headers.get("authorization")
        if header is not None and not header.lower().startswith("bearer "):
            raise Unauthorized("the Authorization header must be 'Bearer <key>'")
        secret = None if header is None else header[7:].strip()
        found = await authenticate(request, secret, (scope,), "Authorization: Bearer <key>")
        await bind_content_key(request, found)
        key_prefix.check_prefix(request, found)
        await check_query(request)
        await addresses.resolve_line(request, found)
        return found

    _SCOPES[dependency] = scope
    return dependency


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
    """Encrypt and decrypt the contents of this request with its tenant's content key, if it has one.

    Raises ContentsErased or StoreUnavailable.
    """
    seal_with(await request.state.services.keyring.sealer(who.tenant_id))


def scope_of(call: Callable[..., Any]) -> str | None:
    """Return the scope that an authenticating dependency requires; None for any other dependency."""
    return _SCOPES.get(call)


def is_authenticator(call: Callable[..., Any]) -> bool:
    """Return whether a dependency authenticates callers."""
    return call in _SCOPES
