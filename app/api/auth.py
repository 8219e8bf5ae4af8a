"""Who is asking, from the Authorization header."""

from collections.abc import Awaitable, Callable
from functools import cache

from fastapi import Request

from app.services.tenants import Caller, Tenants

__all__ = ["Caller", "Forbidden", "Unauthorized", "caller"]


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
def caller(scope: str) -> Callable[[Request], Awaitable[Caller]]:
    """The dependency that lets in who holds `scope`. Raises Unauthorized or Forbidden."""

    async def dependency(request: Request) -> Caller:
        header = request.headers.get("authorization")
        if header is not None and not header.lower().startswith("bearer "):
            raise Unauthorized("the Authorization header must be a Bearer key")
        tenants: Tenants = request.state.services.tenants
        found = await tenants.authenticate(None if header is None else header[7:].strip())
        if found is None:
            raise Unauthorized("this key does not work" if header else "a key is needed: Authorization: Bearer <key>")
        if not found.may(scope):
            raise Forbidden(f"this key lacks the scope {scope!r}")
        return found

    return dependency
