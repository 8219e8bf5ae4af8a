"""Reading a request's body: bounded, and as JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import BodyTooLarge
from app.core.errors import InvalidRequest
from app.core.events import SESSION_ID_PATTERN

_SESSION_ID: Final = re.compile(SESSION_ID_PATTERN)


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


def session_id(request: Request) -> str:
    """The session's id in the path. Raises InvalidRequest."""
    sid: str = request.path_params["sid"]
    if _SESSION_ID.fullmatch(sid) is None:
        raise InvalidRequest(f"sid must match {SESSION_ID_PATTERN}", field="sid")
    return sid


async def read_json(request: Request, known: frozenset[str]) -> tuple[Mapping[str, Any], bytes]:
    """The body as a JSON object with only `known` fields, and its bytes.

    Raises BodyTooLarge, or InvalidRequest for anything that is no such object.
    """
    raw = await request.body()
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest("the body is no valid JSON", field="") from None
    if not isinstance(value, Mapping):
        raise InvalidRequest("the body must be a JSON object", field="")
    for name in value:
        if name not in known:
            raise InvalidRequest(f"unknown field {name!r}", field=name)
    return value, raw
