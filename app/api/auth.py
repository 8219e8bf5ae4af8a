"""Authenticate by bearer key."""

from collections.abc import Awaitable, Callable, Collection
from functools import cache
from typing import Any, Final

from fastapi import Request

from app.api import addresses, reach
from app.api.access import known
from app.api.busy import place_of
from app.api.query import check_query
from app.services.tenants import Caller, Tenants
from app.store.engine import act_for
from app.store.sealing import seal_with

__all__ = ["Caller", "Forbidden", "Unauthorized", "admitted", "caller", "is_door", "open_contents"]

Door = Callable[[Request], Awaitable[Caller]]
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
def caller(scope: str) -> Door:
    """Return the dependency that authenticates a caller for `scope`, and makes the request act for its tenant.

    It also checks the key's session prefix and the query's parameters, and resolves the session in the path to a line.
    It raises Unauthorized, Forbidden, TooManyRequests, ContentsErased, OutOfReach, NotFound or InvalidRequest.
    """

    async def dependency(request: Request) -> Caller:
        header = request.headers.get("authorization")
        if header is not None and not header.lower().startswith("bearer "):
            raise Unauthorized("the Authorization header must be 'Bearer <key>'")
        secret = None if header is None else header[7:].strip()
        found = await admitted(request, secret, (scope,), "Authorization: Bearer <key>")
        await open_contents(request, found)
        reach.check(request, found)
        await check_query(request)
        await addresses.follow(request, found)
        return found

    _SCOPES[dependency] = scope
    return dependency


async def admitted(request: Request, secret: str | None, scopes: Collection[str], how: str) -> Caller:
    """Authenticate the holder of a key with all of these scopes, and make the request act for its tenant.

    Neither checks the key's session prefix nor opens contents (`open_contents`). `how` tells a caller without a key how
    to send one. Raises Unauthorized, Forbidden or TooManyRequests.
    """
    tenants: Tenants = request.state.services.tenants
    found = await tenants.authenticate(secret)
    if found is None:
        raise Unauthorized("this key is not valid" if secret else f"a key is required: {how}")
    for scope in scopes:
        if not found.may(scope):
            raise Forbidden(f"this key lacks the scope {scope!r}")
    place = place_of(request.scope)
    if place is not None:
        place.of(found.tenant_id)
    act_for(found.tenant_id)
    known(request.scope, found.tenant_id)
    return found


async def open_contents(request: Request, who: Caller) -> None:
    """Encrypt and decrypt the contents of this request with its tenant's content key, if it has one.

    Raises ContentsErased or StoreUnavailable.
    """
    seal_with(await request.state.services.keyring.sealer(who.tenant_id))


def scope_of(call: Callable[..., Any]) -> str | None:
    """Return the scope that an authenticating dependency requires; None for any other dependency."""
    return _SCOPES.get(call)


def is_door(call: Callable[..., Any]) -> bool:
    """Return whether a dependency authenticates callers."""
    return call in _SCOPES
