"""Check that a request's query has only parameters that its operation declares."""

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.routing import APIRoute

from app.core.errors import InvalidRequest
from app.core.log.segments import ADDRESS_PATTERN
from app.http.fields import value_types


@dataclass(frozen=True, slots=True)
class ValueForm:
    """The pattern of a parameter's value, and the words for it in an error."""

    pattern: re.Pattern[str]
    words: str


_FORMS: Final = {
    bool: ValueForm(re.compile("true|false"), "true or false"),
    int: ValueForm(re.compile("-?[0-9]+"), "a whole number"),
}
_ADDRESS: Final = re.compile(ADDRESS_PATTERN)
_TYPES: Final = {"boolean": bool, "integer": int}
_PARAMETERS: Final[dict[str, Mapping[str, ValueForm | None]]] = {}
"""The parameters of each operation requested so far, with the forms of their values."""


async def check_query(request: Request) -> None:
    """Check the parameters in the query and path. Raises InvalidRequest.

    Refuses a session's id that is none; an unknown parameter, which may be a misspelt one; NUL, which the database
    cannot store; and a value whose form is not that of its declared type.
    """
    path, query = request.path_params, request.scope["query_string"].decode("latin-1")
    if not query and not path:
        return
    if "sid" in path and _ADDRESS.fullmatch(path["sid"]) is None:
        raise InvalidRequest(f"sid must match {ADDRESS_PATTERN}", field="sid")
    given, known, route = parse_qsl(query, keep_blank_values=True), None, request.scope.get("route")
    if isinstance(route, APIRoute):  # else it is no operation of the API
        name = str(route.operation_id)
        if name not in _PARAMETERS:
            _PARAMETERS[name] = dict(_parameters(route))
        known = _PARAMETERS[name]
    for name, value in given:
        if "\x00" in name or "\x00" in value:
            raise InvalidRequest("a query must not hold NUL", field=name)
        if known is not None and (name not in known or name in path):
            own = known.keys() - path.keys()
            takes = f"takes {', '.join(sorted(own))}" if own else "takes none"
            raise InvalidRequest(f"unknown query parameter {name!r}: this operation {takes}", field=name)
    for name, value in (*path.items(), *given):
        form = known.get(name) if known else None
        if form is not None and form.pattern.fullmatch(str(value)) is None:
            raise InvalidRequest(f"{name} must be {form.words}", field=name)


def _parameters(route: APIRoute) -> Iterator[tuple[str, ValueForm | None]]:
    """Yield the parameters of an operation with their forms."""
    dependants = [route.dependant]
    for dependant in dependants:
        dependants += dependant.dependencies
        for parameter in (*dependant.query_params, *dependant.path_params):
            yield parameter.alias, _form(value_types(parameter.field_info.annotation))
    for one in (route.openapi_extra or {}).get("parameters", ()):
        if one["in"] == "query":
            kinds = (kind.get("type") for kind in one["schema"].get("anyOf", [one["schema"]]))
            yield one["name"], _form({_TYPES.get(kind) for kind in kinds})


def _form(kinds: Set[Any]) -> ValueForm | None:
    return next((form for kind, form in _FORMS.items() if kind in kinds), None)
