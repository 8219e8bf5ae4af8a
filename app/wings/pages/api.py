"""Requests to this server's own API inside the process, with the rights of the page's reader.

Pages show only what these requests return, and their own statements on the same tenant's tables, so that nobody sees
on a page more than on the API.
"""

import json
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from app.http.errors import PROBLEM

_OWN: Final = ("route", "router", "endpoint", "path_params", "starlette.exception_handlers", PROBLEM)
"""Parts of a scope that belong to the page's request alone. Without handlers, errors are raised here as they are."""


class Api:
    """The API as one reader of a page may use it."""

    def __init__(self, request: Request, authorization: str | None) -> None:
        self._request = request
        self._authorization = authorization

    async def get(self, path: str, **query: object) -> Any:
        """Return the JSON of a GET request; parameters that are None are left out. Raises the API's errors."""
        return json.loads(await self.read(path, **query))

    async def find(self, path: str, **query: object) -> Any:
        """Like `get`, but None if the server has no such operation, because its wing was removed."""
        try:
            return await self.get(path, **query)
        except HTTPException as error:
            if error.status_code != 404:
                raise
            return None

    async def read(self, path: str, **query: object) -> bytes:
        """Return the body of the response to a GET request. Raises the API's errors."""
        return await self._send("GET", path, query, None)

    async def post(self, path: str, body: object = None) -> Any:
        """Return the JSON of a POST request. Raises the API's errors."""
        return json.loads(await self._send("POST", path, {}, body))

    async def stream(self, path: str, receive: Receive, send: Send, **query: object) -> None:
        """Forward the response to a GET request as it comes. Raises the API's errors."""
        names = (b"last-event-id",)
        given = [(name, value) for name, value in self._request.scope["headers"] if name in names]
        await self._request.app.router(self._scope("GET", path, query, given), receive, send)

    async def _send(self, method: str, path: str, query: dict[str, object], body: object) -> bytes:
        sent = b"" if body is None else json.dumps(body).encode()
        received = bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            received.extend(message.get("body", b""))

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(sent)).encode())]
        scope = self._scope(method, path, query, [] if body is None else headers)
        await self._request.app.router(scope, receive, send)
        return bytes(received)

    def _scope(self, method: str, path: str, query: dict[str, object], headers: list[tuple[bytes, bytes]]) -> Scope:
        given = {name: _text(value) for name, value in query.items() if value is not None}
        if self._authorization is not None:
            headers = [*headers, (b"authorization", self._authorization.encode("latin-1", "replace"))]
        kept = {name: value for name, value in self._request.scope.items() if name not in _OWN}
        return {
            **kept,
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(given).encode(),
            "headers": headers,
            "state": dict(kept["state"]),
        }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
