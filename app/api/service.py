"""The dependency that gives routes their services."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request

_T = TypeVar("_T")


def service(kind: type[_T]) -> Callable[[Request], Awaitable[_T]]:
    """Return the dependency that gives a route the application's service of a class."""

    async def found(request: Request) -> _T:
        one: _T = request.state.services.by_class[kind]
        return one

    return found
