"""Read a request: check its query and path against its operation, and parse its body's JSON within the limits."""

import asyncio
import json
import math
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from app.core.errors import InvalidRequest
from app.core.log.events import Json, more_values, too_deep
from app.core.log.segments import ADDRESS_PATTERN
from app.http.errors import BodyTooLarge, InvalidJson
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

    Refuses a malformed session id; an unknown parameter, which may be a misspelt one; NUL, which the database
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


Model = TypeVar("Model", bound=BaseModel)

INLINE_BYTES_MAX: Final = 128 * 1024
"""The size up to which a body is parsed on the event loop; a larger one is parsed in a thread."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """The maximum number of values in a body's JSON, and their maximum nesting depth."""

    elements: int
    depth: int


class ParsedRequest(Request):
    """A request whose body has been read as JSON, whatever its Content-Type (`curl -d` declares a form)."""

    value: Json = None

    @classmethod
    async def of(cls, request: Request) -> "ParsedRequest":
        """Read a request's body. Raises BodyTooLarge or InvalidJson."""
        read = cls(request.scope, request.receive)
        if await read.body():
            read.value, _ = await read_json(read)
            fields = request.headers.mutablecopy()
            fields["content-type"] = "application/json"  # or FastAPI would take the body for bytes
            read._headers = fields
        return read

    async def json(self) -> Json:
        """Return the parsed body."""
        return self.value


async def read_json(request: Request, *, strict: bool = True) -> tuple[Json, bytes]:
    """Return the body, parsed as JSON within the limits, and its bytes.

    `strict` refuses NaN, infinities and numbers too large for a float. Raises BodyTooLarge or InvalidJson.
    """
    raw, limits = await request.body(), request.app.state.json_limits
    if len(raw) <= INLINE_BYTES_MAX:
        return parse(raw, limits, strict=strict), raw
    return await asyncio.to_thread(parse, raw, limits, strict=strict), raw


async def read_model(request: Request, model: type[Model]) -> Model:
    """Return the body as a model; an empty body has no fields.

    Raises BodyTooLarge, InvalidJson, or RequestValidationError as FastAPI does for a declared body.
    """
    value, _ = await read_json(request) if await request.body() else ({}, b"")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None


def parse(raw: bytes, limits: JsonLimits, *, strict: bool) -> Json:
    """Parse a JSON text within the limits, on the calling thread. Raises BodyTooLarge or InvalidJson."""
    check_elements(raw, limits)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidJson("the body is not valid UTF-8") from None
    try:
        value = (_STRICT if strict else _LENIENT).decode(text)
    except (ValueError, RecursionError):
        raise InvalidJson("the body is not valid JSON") from None
    check_depth(value, limits)
    return value


def check_elements(raw: bytes, limits: JsonLimits) -> None:
    """Check the number of values in a JSON text without parsing it. Raises BodyTooLarge."""
    if more_values(raw.decode("latin-1"), limits.elements):
        raise BodyTooLarge(limits.elements, "elements")


def check_depth(value: Json, limits: JsonLimits) -> None:
    """Check the nesting depth of a value, level by level. Raises InvalidJson."""
    if too_deep([value], limits.depth + 1):
        raise InvalidJson(f"the body is nested deeper than {limits.depth} levels")


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_STRICT: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_LENIENT: Final = json.JSONDecoder()
