"""The parameters in a request's query: those that its operation has, and no others."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.core.errors import InvalidRequest

_NAMES: Final[dict[str, AbstractSet[str]]] = {}
"""The parameters of each operation that was asked for with a query."""


async def check_query(request: Request) -> None:
    """Refuse a query with a parameter that the operation does not have: it may be a misspelt one, and ignoring it would
    answer another question. Refuse NUL, which no parameter can hold and the database has no text for.

    Raises InvalidRequest.
    """
    if not request.scope["query_string"]:
        return
    known = _known(request.scope.get("route"))
    for name, value in parse_qsl(request.url.query, keep_blank_values=True):
        if "\x00" in name or "\x00" in value:
            raise InvalidRequest("a query must not hold NUL", field=name)
        if known is not None and name not in known:
            takes = f"takes {', '.join(sorted(known))}" if known else "takes none"
            raise InvalidRequest(f"unknown query parameter {name!r}: this operation {takes}", field=name)


def _known(route: Any) -> AbstractSet[str] | None:
    """Return the names of an operation's parameters; None for what is no operation of the API."""
    if not isinstance(route, APIRoute):
        return None
    name = str(route.operation_id)
    if name not in _NAMES:
        own = (route.openapi_extra or {}).get("parameters", ())
        _NAMES[name] = {*_names(route.dependant), *(one["name"] for one in own if one["in"] == "query")}
    return _NAMES[name]


def _names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        yield parameter.alias
    for inner in dependant.dependencies:
        yield from _names(inner)
