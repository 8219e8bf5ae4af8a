"""Who is asking, from the Authorization header."""

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
_DOORS: Final[dict[Any, str]] = {}


class Unauthorized(Exception):
    """No key, or none that works."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Forbidden(Exception):
    """The key works, but not for this."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


@cache
def caller(scope: str) -> Door:
    """The dependency that lets in who holds `scope`, for what its key reaches, with a query that the operation has:
    from then on the request acts for its tenant.

    Raises Unauthorized, Forbidden, TooManyRequests, ContentsErased, OutOfReach, NotFound, or InvalidRequest.
    """

    async def dependency(request: Request) -> Caller:
        header = request.headers.get("authorization")
        if header is not None and not header.lower().startswith("bearer "):
            raise Unauthorized("the Authorization header must be a Bearer key")
        secret = None if header is None else header[7:].strip()
        found = await admitted(request, secret, (scope,), "Authorization: Bearer <key>")
        await open_contents(request, found)
        reach.check(request, found)
        await check_query(request)
        await addresses.follow(request, found)
        return found

    _DOORS[dependency] = scope
    return dependency


async def admitted(request: Request, secret: str | None, scopes: Collection[str], how: str) -> Caller:
    """The holder of a key with all of these scopes: from then on the request acts for its tenant.

    What the key reaches is not checked, and contents are not open yet (`open_contents`). `how` says how one is sent.
    Raises Unauthorized, Forbidden or TooManyRequests.
    """
    tenants: Tenants = request.state.services.tenants
    found = await tenants.authenticate(secret)
    if found is None:
        raise Unauthorized("this key does not work" if secret else f"a key is needed: {how}")
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
    """From then on what the request stores is sealed with its tenant's key, and opened, where there is one.

    Raises ContentsErased or StoreUnavailable.
    """
    seal_with(await request.state.services.keyring.sealer(who.tenant_id))


def scope_of(call: Callable[..., Any]) -> str | None:
    """Return the scope that a door asks for; None for what is no door."""
    return _DOORS.get(call)


def is_door(call: Callable[..., Any]) -> bool:
    """Whether a dependency is one of those that let callers in."""
    return call in _DOORS
