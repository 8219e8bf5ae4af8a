"""Requests under way: no more than this process can answer soon, and of one tenant no more than leave room for others.

Refused is what comes beyond that, before it is read: what waits helps nobody and takes memory. Streams have a limit of
their own.
"""

from typing import Final
from uuid import UUID

from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.errors import Overloaded, TooManyRequests

PLACE: Final = "palimpsest.place"
"""Where in a request's scope its place is."""
EXEMPT: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class Counts:
    """The requests that this process answers now, all and by tenant."""

    def __init__(self, most: int, tenant_most: int) -> None:
        self.most = most
        self.tenant_most = tenant_most
        self.all = 0
        self.tenants: dict[UUID, int] = {}


class RequestSlot:
    """A request among those under way, from its arrival to the end of its answer."""

    def __init__(self, counts: Counts) -> None:
        """Raises Overloaded."""
        if counts.all >= counts.most:
            raise Overloaded(f"this process answers {counts.most} requests already", limit=counts.most)
        counts.all += 1
        self._counts = counts
        self._tenant: UUID | None = None
        self._left = False

    def of(self, tenant_id: UUID) -> None:
        """Count it for its tenant, now that it is known whose it is; once. Raises TooManyRequests."""
        if self._left or self._tenant is not None:
            return
        counts, most = self._counts, self._counts.tenant_most
        now = counts.tenants.get(tenant_id, 0)
        if now >= most:
            raise TooManyRequests(
                f"this tenant has {most} requests under way already", limit=most, retry_after_seconds=1
            )
        counts.tenants[tenant_id] = now + 1
        self._tenant = tenant_id

    def leave(self) -> None:
        """Count it no more; once."""
        if self._left:
            return
        self._left = True
        counts = self._counts
        counts.all -= 1
        if self._tenant is not None:
            counts.tenants[self._tenant] -= 1
            if not counts.tenants[self._tenant]:
                del counts.tenants[self._tenant]


class Busy:
    """ASGI middleware: gives each request its place."""

    def __init__(self, app: ASGIApp, requests_max: int, tenant_requests_max: int) -> None:
        self._app = app
        self._counts = Counts(requests_max, tenant_requests_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while it has its place. Raises Overloaded."""
        if scope["type"] != "http" or scope["path"] in EXEMPT:
            await self._app(scope, receive, send)
            return
        place = scope[PLACE] = RequestSlot(self._counts)
        try:
            await self._app(scope, receive, send)
        finally:
            place.leave()


def place_of(scope: Scope) -> RequestSlot | None:
    """The place of a request; None where there is no middleware, or for what is always answered."""
    found: RequestSlot | None = scope.get(PLACE)
    return found
