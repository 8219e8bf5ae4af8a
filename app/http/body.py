"""Read a request's body: authenticate the caller first, then apply the limits, then parse the JSON."""

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

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
