"""Check that a request's query has only parameters that its operation declares."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.core.errors import InvalidRequest
from app.http.fields import value_types

Kinds = frozenset[Any]
_KINDS: Final[dict[str, Mapping[str, Kinds]]] = {}
"""The parameters of each operation requested so far, with the types of their values."""
_FORMS: Final = {
    bool: (re.compile("true|false"), "true or false"),
    int: (re.compile("-?[0-9]+"), "a whole number"),
}
_TYPES: Final = {"boolean": bool, "integer": int}


async def check_query(request: Request) -> None:
    """Check the parameters in the query and path. Raises InvalidRequest.

    Refuses an unknown parameter, which may be a misspelt one; NUL, which the database cannot store; and a value whose
    form is not that of its declared type.
    """
    if not request.scope["query_string"] and not request.path_params:
        return
    known = _known(request.scope.get("route"))
    for name, text in request.path_params.items():
        _check_form(name, str(text), (known or {}).get(name, frozenset()))
    for name, value in parse_qsl(request.url.query, keep_blank_values=True):
        if "\x00" in name or "\x00" in value:
            raise InvalidRequest("a query must not hold NUL", field=name)
        if known is None:
            continue
        if name not in known or name in request.path_params:
            own = known.keys() - request.path_params.keys()
            takes = f"takes {', '.join(sorted(own))}" if own else "takes none"
            raise InvalidRequest(f"unknown query parameter {name!r}: this operation {takes}", field=name)
        _check_form(name, value, known[name])


def _check_form(name: str, value: str, kinds: Kinds) -> None:
    for kind, (form, words) in _FORMS.items():
        if kind in kinds and form.fullmatch(value) is None:
            raise InvalidRequest(f"{name} must be {words}", field=name)


def _known(route: Any) -> Mapping[str, Kinds] | None:
    """Return an operation's parameters; None if the route is not an operation of the API."""
    if not isinstance(route, APIRoute):
        return None
    name = str(route.operation_id)
    if name not in _KINDS:
        own = (route.openapi_extra or {}).get("parameters", ())
        described = {one["name"]: _described(one["schema"]) for one in own if one["in"] == "query"}
        _KINDS[name] = dict(_declared(route.dependant)) | described
    return _KINDS[name]


def _declared(dependant: Dependant) -> Iterator[tuple[str, Kinds]]:
    for parameter in (*dependant.query_params, *dependant.path_params):
        yield parameter.alias, value_types(parameter.field_info.annotation)
    for inner in dependant.dependencies:
        yield from _declared(inner)


def _described(schema: Mapping[str, Any]) -> Kinds:
    types = [one.get("type") for one in schema.get("anyOf", [schema])]
    return frozenset(_TYPES[one] for one in types if one in _TYPES)
