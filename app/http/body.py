"""Read a request's body: authenticate the caller first, then apply the limits, then parse the JSON."""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from app.core.errors import InvalidRequest
from app.core.log.events import Json, more_values, too_deep
from app.http.errors import BodyTooLarge, InvalidJson

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
        raw = await read.body()
        if raw:
            read.value = await parse_json(raw, request.app.state.json_limits)
            fields = request.headers.mutablecopy()
            fields["content-type"] = "application/json"  # or FastAPI would take the body for bytes
            read._headers = fields
        return read

    async def json(self) -> Json:
        """Return the parsed body."""
        return self.value


async def read_json(request: Request) -> tuple[Mapping[str, Any], bytes]:
    """Return the body as a JSON object, and its bytes.

    Accepts NaN and infinities, because events are validated one by one later. Raises BodyTooLarge, or InvalidRequest if
    the body is not such an object.
    """
    raw = await request.body()
    value = await parse_json(raw, request.app.state.json_limits, strict=False)
    if not isinstance(value, Mapping):
        raise InvalidRequest("the body must be a JSON object", field="")
    return value, raw


async def read_model(request: Request, model: type[Model]) -> Model:
    """Return the body as a model; an empty body has no fields.

    Raises BodyTooLarge, InvalidJson, or RequestValidationError as FastAPI does for a declared body.
    """
    raw = await request.body()
    value = await parse_json(raw, request.app.state.json_limits) if raw else {}
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None


async def parse_json(raw: bytes, limits: JsonLimits, *, strict: bool = True) -> Json:
    """Parse a JSON text within the limits; `strict` refuses NaN, infinities and numbers too large for a float.

    Raises BodyTooLarge or InvalidJson.
    """
    if len(raw) <= INLINE_BYTES_MAX:
        return parse(raw, limits, strict=strict)
    return await asyncio.to_thread(parse, raw, limits, strict=strict)


def parse(raw: bytes, limits: JsonLimits, *, strict: bool) -> Json:
    """Parse as `parse_json` does, on the calling thread."""
    check_elements(raw, limits)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidJson("the body is not valid UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite) if strict else json.loads(text)
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
