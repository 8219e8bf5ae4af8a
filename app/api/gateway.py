"""The gateway: providers' APIs under /gateway, which replaces conversations by contexts on their way upstream.

Clients only need its address. A request that is not a conversation of a known session is forwarded unchanged, and so is
a conversation that cannot be budgeted, so that the gateway never prevents a call.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final
from urllib.parse import unquote

import structlog
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.api.gateway_exchange import GatewayExchange, GatewayTarget, forward_exchange
from app.api.metrics import GATEWAY
from app.core.errors import (
    ContentsErased,
    ContextError,
    NotFound,
    Overloaded,
    StoreUnavailable,
    UpstreamFailed,
    UpstreamLate,
)
from app.core.gateway import body as bodies
from app.core.gateway.calls import AT_PROVIDER, ENDPOINTS, NOT_IN_LOG, Endpoint, NotBudgeted, conversation
from app.core.gateway.headers import KEY_HEADER
from app.core.gateway.identity import identify, legal_name
from app.http.access import TemplateRoute, bind_caller
from app.http.auth import Forbidden, Unauthorized, authenticate, bind_content_key
from app.http.body import INLINE_BYTES_MAX, JsonLimits, check_depth, check_elements
from app.http.concurrency import slot_of
from app.http.errors import GATEWAY as PREFIX
from app.http.errors import BodyTooLarge, InvalidJson, find_problem
from app.http.key_prefix import check_session
from app.providers.upstream import UpstreamError
from app.services.gateway import Gateway
from app.services.recent_callers import RecentCallers
from app.services.tenants import Caller, digest

METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
PROVIDERS: Final = ("anthropic", "openai")


class GatewayApp:
    """The gateway's ASGI application.

    `requests_max` limits its concurrent calls; `seconds` limits the lookup of a key, and of the tenant's content key.
    """

    def __init__(self, requests_max: int, seconds: float) -> None:
        self._most = requests_max
        self._seconds = seconds
        self._open = 0
        self._recent = RecentCallers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an authenticated caller.

        Raises the errors of `_caller`, and NotFound, BodyTooLarge, InvalidRequest, Overloaded, UpstreamFailed or
        UpstreamLate.
        """
        request = Request(scope, receive)
        gateway: Gateway = request.state.services.gateway
        who, away = await self._caller(request)
        target = _target(request)
        upstream = gateway.upstreams.get(target.provider)
        if upstream is None:
            raise NotFound(f"no upstream is set for {target.provider}")
        raw = await request.body()
        if self._open >= self._most:
            raise Overloaded(f"this process already forwards {self._most} calls", limit=self._most)
        place = slot_of(scope)
        if place is not None:
            place.release()  # calls that wait for a model have their own limit
        self._open += 1
        try:
            passage = GatewayExchange(request, target, upstream, raw)
            await _cancel_on_disconnect(receive, passage, _serve(gateway, who, passage, send, away=away))
        finally:
            self._open -= 1

    async def _caller(self, request: Request) -> tuple[Caller, bool]:
        """Return the caller, and whether the database is unreachable; in that case only recent callers are accepted.

        Raises the errors of `authenticate` and `bind_content_key`.
        """
        secret = request.headers.get(KEY_HEADER)
        hashed = b"" if secret is None else digest(secret)
        try:
            async with asyncio.timeout(self._seconds):
                who = await authenticate(request, secret, ("ingest", "read"), f"{KEY_HEADER}: <key>")
        except (StoreUnavailable, TimeoutError):
            recent = self._recent.find(hashed)
            if recent is None:
                raise StoreUnavailable("the database is unreachable, so this key cannot be checked") from None
            return recent, True
        except (Unauthorized, Forbidden):
            self._recent.refuse(hashed)
            raise
        try:
            async with asyncio.timeout(self._seconds):
                await bind_content_key(request, who)
        except (StoreUnavailable, TimeoutError):
            return who, True
        except ContentsErased:
            self._recent.refuse(hashed)
            raise
        self._recent.admit(hashed, who)
        return who, False


def route(requests_max: int, seconds: float) -> Route:
    """Return the route for all paths under /gateway."""
    return TemplateRoute(
        f"{PREFIX}{{path:path}}", GatewayApp(requests_max, seconds), methods=METHODS, include_in_schema=False
    )


async def _serve(gateway: Gateway, who: Caller, passage: GatewayExchange, send: Send, *, away: bool) -> None:
    """Serve a request; with the database `away`, forward it unchanged."""
    endpoint = ENDPOINTS.get((passage.target.provider, passage.target.path))
    asks = endpoint is not None and passage.request.method == "POST"
    if away:
        identity = identify(passage.request.headers, passage.target.session, None) if asks else None
        if identity is not None and identity.configured:
            check_session(who, identity.session)
        passage.mode, passage.reason = "bypass", find_problem(StoreUnavailable("")).slug
    elif endpoint is not None and asks:
        await _replace_conversation(gateway, who, endpoint, passage)
    GATEWAY.labels(passage.target.provider, passage.mode).inc()
    try:
        await forward_exchange(gateway, passage, send)
    except UpstreamError as error:
        structlog.get_logger().warning("upstream", provider=passage.target.provider, detail=error.detail)
        if not passage.response_started:  # else the connection is closed in the middle of the response, as upstream did
            raise (UpstreamLate if error.timed_out else UpstreamFailed)(error.detail) from None
    except TimeoutError:
        structlog.get_logger().warning("a gateway client stopped reading", session=passage.session)


async def _replace_conversation(gateway: Gateway, who: Caller, endpoint: Endpoint, passage: GatewayExchange) -> None:
    """Replace the conversation by its context, or record why it is not. Raises InvalidRequest or NotFound."""
    request = passage.request
    given = await _parse(request, passage.body)
    identity = identify(request.headers, passage.target.session, None if given is None else given.value)
    if identity is None:
        passage.reason = "no-session"
        return
    session = identity.session if identity.configured else legal_name(who.session_prefix + identity.session)
    check_session(who, session)
    bind_caller(request.scope, who.tenant_id, session)
    passage.mode, passage.session = "bypass", session
    try:
        if given is None:
            raise NotBudgeted("unreadable")
        of = conversation(endpoint, given.value)
        if endpoint.counts:
            passage.body = await gateway.prepare_count(who.tenant_id, session, given, of)
        else:
            passage.call = await gateway.prepare(who.tenant_id, session, given, of)
            passage.body = passage.call.body
        passage.mode = "context"
    except NotBudgeted as why:
        passage.reason = str(why)
    except TimeoutError:
        passage.reason = "too-slow"
    except ContextError as error:
        passage.reason = find_problem(error).slug
    except Exception as error:
        structlog.get_logger().error("gateway", session=session, exc_info=error)
        passage.reason = "internal"
    if passage.reason in (None, AT_PROVIDER, NOT_IN_LOG):
        return
    if gateway.is_first_bypass(who.tenant_id, session, passage.reason):
        structlog.get_logger().warning("bypass", session=session, reason=passage.reason)


async def _parse(request: Request, raw: bytes) -> bodies.Body | None:
    """Parse the body; return None if it is not a JSON object within the limits."""
    asked = (raw, request.app.state.json_limits)
    try:
        return _read(*asked) if len(raw) <= INLINE_BYTES_MAX else await asyncio.to_thread(_read, *asked)
    except (BodyTooLarge, InvalidJson, bodies.NoObject):
        return None


def _read(raw: bytes, limits: JsonLimits) -> bodies.Body:
    """Parse the body. Raises BodyTooLarge, InvalidJson or NoObject."""
    check_elements(raw, limits)
    given = bodies.parse(raw)
    check_depth(given.value, limits)
    return given


def _target(request: Request) -> GatewayTarget:
    """Parse the raw path. Raises NotFound."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    rest = raw.decode("latin-1").partition("?")[0].removeprefix(PREFIX)
    session = None
    if rest.startswith("s/"):
        _, session, rest = (*rest.split("/", 2), "")[:3]
    provider, _, path = rest.partition("/")
    if provider not in PROVIDERS or {".", ".."} & set(path.split("/")):
        raise NotFound(f"there is nothing at {request.url.path}")
    return GatewayTarget(provider, f"/{path}", None if session is None else unquote(session))


async def _cancel_on_disconnect(receive: Receive, passage: GatewayExchange, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or cancel it when the client disconnects, so that an unread response is not paid for."""
    task = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not passage.response_complete:
            task.cancel()

    watching = asyncio.create_task(watch())
    try:
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
    finally:
        watching.cancel()
        task.cancel()
