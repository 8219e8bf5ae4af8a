"""Limits on concurrent requests of this process, in total and per tenant.

A request over a limit is refused before its body is read, because a waiting one would take memory and help nobody.
Streams have their own limit.
"""

from typing import Final
from uuid import UUID

from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.errors import Overloaded, TooManyRequests

SLOT: Final = "palimpsest.place"
"""The key in a request's scope of its RequestSlot."""
EXEMPT: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class RequestCounts:
    """The numbers of concurrent requests in this process, in total and by tenant, with their limits."""

    def __init__(self, most: int, tenant_most: int) -> None:
        self.most = most
        self.tenant_most = tenant_most
        self.all = 0
        self.tenants: dict[UUID, int] = {}


class RequestSlot:
    """The slot that a request occupies from its arrival to the end of its response."""

    def __init__(self, counts: RequestCounts) -> None:
        """Occupy a slot. Raises Overloaded."""
        if counts.all >= counts.most:
            raise Overloaded(f"this process already answers {counts.most} requests", limit=counts.most)
        counts.all += 1
        self._counts = counts
        self._tenant: UUID | None = None
        self._left = False

    def assign_tenant(self, tenant_id: UUID) -> None:
        """Count the request for its tenant, once. Raises TooManyRequests."""
        if self._left or self._tenant is not None:
            return
        counts, most = self._counts, self._counts.tenant_most
        now = counts.tenants.get(tenant_id, 0)
        if now >= most:
            raise TooManyRequests(
                f"this tenant already has {most} concurrent requests", limit=most, retry_after_seconds=1
            )
        counts.tenants[tenant_id] = now + 1
        self._tenant = tenant_id

    def release(self) -> None:
        """Free the slot; further calls have no effect."""
        if self._left:
            return
        self._left = True
        counts = self._counts
        counts.all -= 1
        if self._tenant is not None:
            counts.tenants[self._tenant] -= 1
            if not counts.tenants[self._tenant]:
                del counts.tenants[self._tenant]


class LimitConcurrency:
    """ASGI middleware that gives each request a slot."""

    def __init__(self, app: ASGIApp, requests_max: int, tenant_requests_max: int) -> None:
        self._app = app
        self._counts = RequestCounts(requests_max, tenant_requests_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while it occupies a slot. Raises Overloaded."""
        if scope["type"] != "http" or scope["path"] in EXEMPT:
            await self._app(scope, receive, send)
            return
        place = scope[SLOT] = RequestSlot(self._counts)
        try:
            await self._app(scope, receive, send)
        finally:
            place.release()


def slot_of(scope: Scope) -> RequestSlot | None:
    """Return the slot of a request; None without the middleware, or for an exempt path."""
    found: RequestSlot | None = scope.get(SLOT)
    return found
