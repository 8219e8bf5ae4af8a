"""Reading a request's body: by whom it may be sent first, then bounded, then as JSON."""

import asyncio
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import is_door
from app.api.errors import BodyTooLarge, InvalidJson
from app.core.errors import InvalidRequest
from app.core.log.events import Json, more_values, too_deep

AT_ONCE_BYTES: Final = 128 * 1024
"""A body up to this size is read where it is; a larger one in a thread."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """How many values a body's JSON may hold, and how deep they may be nested."""

    elements: int
    depth: int


class LimitBody:
    """ASGI middleware: refuses a body over the limit, whether announced or found while reading."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a `receive` that counts, and raises BodyTooLarge inside the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = next((int(v) for k, v in scope["headers"] if k == b"content-length" and v.isdigit()), 0)
        announced = length > self._limit
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            if announced:
                raise BodyTooLarge(self._limit)
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise BodyTooLarge(self._limit)
            return message

        await self._app(scope, counted, send)


class BodyRoute(APIRoute):
    """A route whose body FastAPI reads: not before it is known who asks, and not before the body is known to be small
    and flat enough.

    An endpoint that takes nothing but the request reads all that it needs itself, and is called at once: to find that
    there is nothing to resolve for it takes FastAPI as long as reading an append does.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if path.endswith("_id}"):  # ids hold no colon: one leads to a verb, as in `{compaction_id}:retry`
            self.path_regex = re.compile(self.path_regex.pattern.removesuffix("[^/]+)$") + "[^/:]+)$")
        if list(inspect.signature(endpoint).parameters) == ["request"]:
            self.app = _called(endpoint)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See APIRoute."""
        handle = super().get_route_handler()
        doors = [found.call for found in self.dependant.dependencies if found.call is not None and is_door(found.call)]

        async def handler(request: Request) -> Response:
            if self.body_field is None:
                return await handle(request)
            for door in doors:
                await door(request)
            return await handle(await _Read.of(request))

        return handler


def _called(endpoint: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


class _Read(Request):
    """A request whose body has been read, as JSON whatever type it was declared to have (`curl -d` declares a form)."""

    value: Json = None

    @classmethod
    async def of(cls, request: Request) -> "_Read":
        """Raises BodyTooLarge or InvalidJson."""
        read = cls(request.scope, request.receive)
        raw = await read.body()
        if raw:
            read.value = await parsed(raw, request.app.state.json_limits)
            fields = request.headers.mutablecopy()
            fields["content-type"] = "application/json"  # or FastAPI would take the body for bytes
            read._headers = fields
        return read

    async def json(self) -> Json:
        """The body's value, as it was read."""
        return self.value


async def read_json(request: Request, known: frozenset[str]) -> tuple[Mapping[str, Any], bytes]:
    """The body as a JSON object with only `known` fields, and its bytes.

    Numbers that JSON does not have are let through: what an agent logs is judged event by event. Raises BodyTooLarge,
    or InvalidRequest for anything that is no such object.
    """
    raw = await request.body()
    value = await parsed(raw, request.app.state.json_limits, strict=False)
    if not isinstance(value, Mapping):
        raise InvalidRequest("the body must be a JSON object", field="")
    for name in value:
        if name not in known:
            raise InvalidRequest(f"unknown field {name!r}", field=name)
    return value, raw


async def parsed(raw: bytes, limits: JsonLimits, *, strict: bool = True) -> Json:
    """The value of a JSON text within the limits; `strict` refuses NaN, infinities and what is too large for a float.

    Raises BodyTooLarge or InvalidJson.
    """
    if len(raw) <= AT_ONCE_BYTES:
        return parse(raw, limits, strict=strict)
    return await asyncio.to_thread(parse, raw, limits, strict=strict)


def parse(raw: bytes, limits: JsonLimits, *, strict: bool) -> Json:
    """See `parsed`."""
    check_elements(raw, limits)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidJson("the body is not in UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite) if strict else json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidJson("the body is no valid JSON") from None
    check_depth(value, limits)
    return value


def check_elements(raw: bytes, limits: JsonLimits) -> None:
    """Count the values of a JSON text without parsing it. Raises BodyTooLarge."""
    if more_values(raw.decode("latin-1"), limits.elements):
        raise BodyTooLarge(limits.elements, "elements")


def check_depth(value: Json, limits: JsonLimits) -> None:
    """Look how deep a value is nested, level by level. Raises InvalidJson."""
    if too_deep([value], limits.depth + 1):
        raise InvalidJson(f"the body is nested deeper than {limits.depth} levels")


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
