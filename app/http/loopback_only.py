"""The rule that a server without keys answers only this machine, and no web pages of other sites."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.errors import NOT_LOCAL, problem_response
from app.services.tenants import Tenants

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths open under any host name: orchestrators use their own, and the responses reveal nothing."""


class LoopbackOnly:
    """ASGI middleware: as long as no key was ever created, a request must name this machine and come from it.

    A browser sends the name it used as `Host`, and the origin of the requesting page in `Origin` and `Sec-Fetch-Site`;
    other clients send only `Host`. With keys nothing is checked, since no page has a key.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = LOOPBACK | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or respond with a problem."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            why = next(self._foreign(scope), None)
            if why is not None:
                tenants: Tenants = scope["state"]["services"].tenants
                if await tenants.is_open():
                    await problem_response(Request(scope), NOT_LOCAL, why)(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> Iterator[str]:
        """Yield the reasons why a request is not from this machine, for the problem's detail."""
        advice = "; create a key (`palimpsest keys create`), or add the host to PALIMPSEST_OPEN_HOSTS"
        for name, value in scope["headers"]:
            if name == b"host" and _host(b"//" + value) not in self._names:
                yield f"without keys, Host must name this machine{advice}"
            if name == b"origin" and _host(value) not in self._names:
                yield f"without keys, requests from pages of other origins are refused{advice}"
            if name == b"sec-fetch-site" and value == b"cross-site":
                yield f"without keys, requests that a browser sends for another site are refused{advice}"


@lru_cache(maxsize=64)
def _host(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return None
