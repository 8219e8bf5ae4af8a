"""The rule that a server without keys is for this machine only, and not for web pages of other sites."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import NOT_LOCAL, answer
from app.services.tenants import Tenants

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths open under any name: orchestrators use names of their own, and the answers reveal nothing."""


class Local:
    """ASGI middleware: while no key was ever made, a request must name this machine and come from it.

    A browser sends the name it used as `Host`, and the site of the requesting page as `Origin` and `Sec-Fetch-Site`;
    other clients send neither of the latter. With keys none of this is checked, since no page has a key.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = LOOPBACK | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            why = next(self._foreign(scope), None)
            if why is not None:
                tenants: Tenants = scope["state"]["services"].tenants
                if await tenants.is_open():
                    await answer(Request(scope), NOT_LOCAL, why)(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> Iterator[str]:
        """Yield the reasons why a request is not from this machine, in words."""
        advice = "; make a key (`palimpsest keys create`), or name it in PALIMPSEST_OPEN_HOSTS"
        for name, value in scope["headers"]:
            if name == b"host" and _host(b"//" + value) not in self._names:
                yield f"without keys, Host must be this machine's own name{advice}"
            if name == b"origin" and _host(value) not in self._names:
                yield f"without keys, no page of another origin is answered{advice}"
            if name == b"sec-fetch-site" and value == b"cross-site":
                yield f"without keys, nothing is answered that another site has a browser ask{advice}"


@lru_cache(maxsize=64)
def _host(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return None
