"""The dependency of routes on services that a replica may answer for, and how old an answer is."""

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Header, Request

from app.services.late import LateReads

AGE: Final = "palimpsest.age"
"""Where in a request's scope the age of a replica's answer is left, in whole seconds."""
DESCRIPTION: Final = (
    "A replica may answer this, where the server has one: `Age` then says how many seconds late it may be. With "
    "`Cache-Control: no-cache` the primary answers."
)
AGE_HEADER: Final = {
    "description": "Seconds by which the answer may be late; only where a replica gave it.",
    "schema": {"type": "integer", "minimum": 0},
}

Service = TypeVar("Service")
Answer = TypeVar("Answer")
_Freshness = Annotated[
    str | None, Header(alias="Cache-Control", description="`no-cache` asks for the newest, which the primary knows.")
]
_MADE: Final[set[Any]] = set()


class Late(Generic[Service]):
    """A service, for one request that looks back."""

    def __init__(self, request: Request, kind: type[Service], *, newest: bool) -> None:
        self._request = request
        self._kind = kind
        self._newest = newest

    async def __call__(self, asked: Callable[[Service], Awaitable[Answer]]) -> Answer:
        """Return what it answers, and leave how late that may be for the answer's header."""
        reads: LateReads = self._request.state.services.late
        answer, age = await reads.ask(self._kind, asked, newest=self._newest)
        if age is not None:
            self._request.scope[AGE] = math.ceil(age)
        return answer


def late(kind: type[Service]) -> Callable[..., Awaitable[Late[Service]]]:
    """Return the dependency that gives a route the service of a class, as the replica or the primary has it."""

    async def found(request: Request, cache_control: _Freshness = None) -> Late[Service]:
        return Late(request, kind, newest="no-cache" in (cache_control or "").lower())

    _MADE.add(found)
    return found


def is_late(call: Callable[..., Any]) -> bool:
    """Whether a dependency is one of these."""
    return call in _MADE
