"""The middleware of all requests: limits, the access log, and a problem for every error.

A request over a limit of concurrent requests is refused before its body is read; queueing it would only take memory.
The access log has one line for each request, without its content.
"""

import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, unbind_contextvars

from app.core.errors import Overloaded, TooManyRequests
from app.http.errors import PROBLEM, BodyTooLarge, NotLocal, error_response
from app.tenants import Tenants

EXCHANGE: Final = "palimpsest.exchange"
"""The key in a request's scope of its Exchange."""
PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths without a limit on concurrent requests, logged at `debug`."""
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths open under any host name: orchestrators use their own, and the responses reveal nothing."""
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
NAME_CHARS_MAX: Final = 300
REQUEST_ID: Final = b"x-request-id"
_SAFE_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_ADVICE: Final = "; create a key (`palimpsest keys create`), or add the host to PALIMPSEST_OPEN_HOSTS"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The maximum numbers of concurrent requests of this process, in all and of a tenant, and of a body's bytes."""

    requests: int
    tenant_requests: int
    body_bytes: int


class RequestCounts:
    """The numbers of concurrent requests in this process, in total and by tenant."""

    def __init__(self) -> None:
        self.all = 0
        self.tenants: Counter[UUID] = Counter()


class Exchange:
    """A request and its response: the slot that it occupies, the count of its bytes, and its outcome.

    The slot is occupied from the request's arrival to the end of its response. `age`: the age of the response's data
    in whole seconds; None if the data is current.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: RequestLimits) -> None:
        """Begin an exchange. Its id is that of the client or a proxy if it is safe to log, else a new one."""
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of equal names counts
        given, length = headers.get(REQUEST_ID, b""), headers.get(b"content-length", b"")
        self.request_id = given.decode("ascii") if _SAFE_ID.fullmatch(given) else secrets.token_hex(8)
        self.scope = scope
        self.limits = limits
        self.tenant: UUID | None = None
        self.age: int | None = None
        self.status: int | None = None
        self.bytes = 0
        self.complete = False
        self._receive = receive
        self._send = send
        self._announced_bytes = int(length) if length.isdigit() else 0
        self._received_bytes = 0
        self._counts: RequestCounts | None = None
        self._counted_tenant: UUID | None = None
        self._session: str | None = None

    async def receive(self) -> Message:
        """Receive a part of the request. Raises BodyTooLarge, by the Content-Length or the bytes received."""
        if self._announced_bytes <= self.limits.body_bytes:
            message = await self._receive()
            self._received_bytes += len(message.get("body", b""))
            if self._received_bytes <= self.limits.body_bytes:
                return message
        raise BodyTooLarge(self.limits.body_bytes)

    async def send(self, message: Message) -> None:
        """Send a part of the response; our headers are added to its start."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # some libraries pass a member of an enumeration
            given = message.get("headers", ())
            if not any(name == REQUEST_ID for name, _ in given):  # keep the provider's own id, which it can look up
                given = [*given, (REQUEST_ID, self.request_id.encode())]
            if self.age is not None:
                given = [*given, (b"age", str(self.age).encode())]
            message["headers"] = given
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        await self._send(message)

    def occupy_slot(self, counts: RequestCounts) -> None:
        """Count the request. Raises Overloaded."""
        most = self.limits.requests
        if counts.all >= most:
            raise Overloaded(f"this process already answers {most} requests", limit=most)
        counts.all += 1
        self._counts = counts

    def release_slot(self) -> None:
        """Stop counting the request; further calls have no effect."""
        counts, self._counts = self._counts, None
        if counts is None:
            return
        counts.all -= 1
        if self._counted_tenant is not None:
            counts.tenants[self._counted_tenant] -= 1
            if not counts.tenants[self._counted_tenant]:
                del counts.tenants[self._counted_tenant]

    def assign_tenant(self, tenant_id: UUID) -> None:
        """Count the request for its tenant, once, and name its session in log lines. Raises TooManyRequests."""
        if self._counts is not None and self._counted_tenant is None:
            most = self.limits.tenant_requests
            if self._counts.tenants[tenant_id] >= most:
                raise TooManyRequests(
                    f"this tenant already has {most} concurrent requests", limit=most, retry_after_seconds=1
                )
            self._counts.tenants[tenant_id] += 1
            self._counted_tenant = tenant_id
        self.tenant = tenant_id
        if (session := self.session) is not None:
            bind_contextvars(session=session)

    def assign_session(self, name: str) -> None:
        """Name the session of a request whose path does not, for log lines."""
        self._session = name
        if (session := self.session) is not None:
            bind_contextvars(session=session)

    @property
    def session(self) -> str | None:
        """The name of the request's session if it is short enough and printable."""
        name: str | None = self._session or self.scope.get("path_params", {}).get("sid")
        return name if name is not None and len(name) <= NAME_CHARS_MAX and name.isprintable() else None


class RequestMiddleware:
    """ASGI middleware that limits and logs each request, and turns its errors into problem responses.

    As long as no key was ever created, a request must name this machine and come from it. A browser sends the name it
    used as `Host`, and the origin of the requesting page in `Origin` and `Sec-Fetch-Site`; other clients send only
    `Host`. With keys nothing is checked, since no page has a key.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: RequestLimits,
        open_hosts: Iterable[str],
        observe: Callable[[Exchange], AbstractContextManager[object]],
    ) -> None:
        """`open_hosts`: names of this machine besides the usual ones. `observe`: a context around each exchange."""
        self._app = app
        self._limits = limits
        self._hosts = LOOPBACK | {name.lower() for name in open_hosts}
        self._observe = observe
        self._counts = RequestCounts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log it when its response has ended or failed."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = scope[EXCHANGE] = Exchange(scope, receive, send, self._limits)
        bind_contextvars(request_id=exchange.request_id)
        started = time.perf_counter()
        try:
            with self._observe(exchange):
                await self._respond(exchange)
        finally:
            _log(exchange, time.perf_counter() - started)
            unbind_contextvars("request_id", "session", "trace_id")

    async def _respond(self, exchange: Exchange) -> None:
        """Respond within the limits. An error after the start of the response is raised again for the server to log."""
        scope = exchange.scope
        try:
            if scope["path"] not in PROBES:
                exchange.occupy_slot(self._counts)
            foreign = None if scope["path"] in OPEN_PATHS else self._reason_foreign(scope)
            if foreign is not None:
                tenants: Tenants = scope["state"]["services"].tenants
                if await tenants.is_open():
                    raise NotLocal(f"{foreign}{_ADVICE}")
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.status is not None:
                raise
            response = error_response(Request(scope), error)
            await response(scope, exchange.receive, exchange.send)
        finally:
            exchange.release_slot()

    def _reason_foreign(self, scope: Scope) -> str | None:
        """Return the reason why a request is not from this machine; None if it is."""
        for name, value in scope["headers"]:
            if name == b"host" and _host(b"//" + value) not in self._hosts:
                return "without keys, Host must name this machine"
            if name == b"origin" and _host(value) not in self._hosts:
                return "without keys, requests from pages of other origins are refused"
            if name == b"sec-fetch-site" and value == b"cross-site":
                return "without keys, requests that a browser sends for another site are refused"
        return None


@lru_cache(maxsize=64)
def _host(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return None


def _log(exchange: Exchange, seconds: float) -> None:
    """Write the log line. It has the raw path only if no route matched, and never the query."""
    scope, status = exchange.scope, exchange.status
    route = getattr(scope.get("route"), "path", None)
    fields: Mapping[str, object] = {
        "method": scope["method"],
        "route": route or "unmatched",
        "path": None if route else scope.get("raw_path", b"").decode("ascii", "replace"),
        "status": status,
        "milliseconds": round(seconds * 1000, 1),
        "bytes": exchange.bytes,
        "tenant": None if exchange.tenant is None else str(exchange.tenant),
        "session": exchange.session,
        "problem": scope.get(PROBLEM),
        "age": exchange.age,
        "cut_off": None if exchange.complete else True,
    }
    log = structlog.get_logger()
    write = log.debug if scope["path"] in PROBES else log.warning if (status or 0) >= 500 else log.info
    write("request", **{name: value for name, value in fields.items() if value is not None})
