"""Reads of the past, whose response may be slightly out of date, so that a wing may serve them from a replica."""

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Header, Request

from app.http.middleware import EXCHANGE

DESCRIPTION: Final = (
    "If the server has a replica, the response may come from it: `Age` then says how many seconds out of date it may "
    "be. With `Cache-Control: no-cache` it comes from the primary."
)
AGE_HEADER: Final = {
    "description": "Seconds by which the response may be out of date; only if it comes from a replica.",
    "schema": {"type": "integer", "minimum": 0},
}

Service = TypeVar("Service")
Answer = TypeVar("Answer")
_Freshness = Annotated[
    str | None, Header(alias="Cache-Control", description="`no-cache` requests the newest data, from the primary.")
]
_DEPENDENCIES: Final[set[Any]] = set()


class PastReads:
    """Runs reads of the past on the primary. A service of a wing that is a subclass replaces it."""

    @property
    def replica_state(self) -> str | None:
        """The state of the replica; None if there is none."""
        return None

    async def read(self, operation: Callable[[], Awaitable[Answer]], *, newest: bool) -> tuple[Answer, float | None]:
        """Return the result of an operation and its maximum age in seconds, None if it is the primary's.

        `newest`: read from the primary.
        """
        return await operation(), None


_PRIMARY: Final = PastReads()


def past_reads(request: Request) -> PastReads:
    """Return the wing's service for reads of the past, or the one that uses the primary."""
    return next((one for one in request.state.services.wings if isinstance(one, PastReads)), _PRIMARY)


class PastRead(Generic[Service]):
    """A service as one request uses it to read the past: call it with the method to run."""

    def __init__(self, request: Request, kind: type[Service], *, newest: bool) -> None:
        self._request = request
        self._service: Service = request.state.services.by_class[kind]
        self._newest = newest

    async def __call__(self, asked: Callable[[Service], Awaitable[Answer]]) -> Answer:
        """Return the service's result, and put its age into the scope for the `Age` header."""
        answer, age = await past_reads(self._request).read(lambda: asked(self._service), newest=self._newest)
        if age is not None:
            self._request.scope[EXCHANGE].age = math.ceil(age)
        return answer


def past_read(kind: type[Service]) -> Callable[..., Awaitable[PastRead[Service]]]:
    """Return the dependency that gives a route the PastRead of the service of a class."""

    async def found(request: Request, cache_control: _Freshness = None) -> PastRead[Service]:
        return PastRead(request, kind, newest="no-cache" in (cache_control or "").lower())

    _DEPENDENCIES.add(found)
    return found


def is_past_read(call: Callable[..., Any]) -> bool:
    """Return whether a dependency was made by `past_read`."""
    return call in _DEPENDENCIES
