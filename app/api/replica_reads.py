"""The dependency of routes on services that may read a replica, and the age of such a response."""

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Header, Request

from app.services.replica_reads import ReadsPast, ReplicaReads

AGE: Final = "palimpsest.age"
"""The key in a request's scope of the age of a response from a replica, in whole seconds."""
DESCRIPTION: Final = (
    "If the server has a replica, the response may come from it: `Age` then says how many seconds out of date it may "
    "be. With `Cache-Control: no-cache` it comes from the primary."
)
AGE_HEADER: Final = {
    "description": "Seconds by which the response may be out of date; only if it comes from a replica.",
    "schema": {"type": "integer", "minimum": 0},
}

Service = TypeVar("Service", bound=ReadsPast)
Answer = TypeVar("Answer")
_Freshness = Annotated[
    str | None, Header(alias="Cache-Control", description="`no-cache` requests the newest data, from the primary.")
]
_DEPENDENCIES: Final[set[Any]] = set()


class ReplicaRead(Generic[Service]):
    """A service that reads the past, for one request."""

    def __init__(self, request: Request, kind: type[Service], *, newest: bool) -> None:
        self._request = request
        self._kind = kind
        self._newest = newest

    async def __call__(self, asked: Callable[[Service], Awaitable[Answer]]) -> Answer:
        """Return the service's result, and put its age into the scope for the `Age` header."""
        services = self._request.state.services
        reads: ReplicaReads = services.late
        answer, age = await reads.read(services.by_class[self._kind], asked, newest=self._newest)
        if age is not None:
            self._request.scope[AGE] = math.ceil(age)
        return answer


def replica_read(kind: type[Service]) -> Callable[..., Awaitable[ReplicaRead[Service]]]:
    """Return the dependency that gives a route the service of a class, on the replica or the primary."""

    async def found(request: Request, cache_control: _Freshness = None) -> ReplicaRead[Service]:
        return ReplicaRead(request, kind, newest="no-cache" in (cache_control or "").lower())

    _DEPENDENCIES.add(found)
    return found


def is_replica_read(call: Callable[..., Any]) -> bool:
    """Return whether a dependency was made by `replica_read`."""
    return call in _DEPENDENCIES
