"""The gateway: providers' APIs under /gateway, which replaces conversations by contexts on their way upstream.

Clients need only its address. A request that names no session is forwarded unchanged. A conversation for which no
context can be made in time is forwarded as the client sent it, less a request for a compaction that is the gateway's to
make. A call is refused only if it may not or cannot be sent, such as over the limit of requests, without access to the
session, or with a compaction item for which there is no context.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import structlog
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.core import errors
from app.core.wire.bodies import Body, NoObject, parse
from app.core.wire.calls import (
    AT_PROVIDER,
    BETA,
    HELD_OUT,
    NOT_IN_LOG,
    CallConversation,
    NotBudgeted,
    RequestedCompaction,
    read_conversation,
    split_request,
)
from app.core.wire.compacted import find_item, is_triggered, without_trigger
from app.core.wire.providers import PROVIDERS, Endpoint, Provider
from app.http.auth import authenticate, check_session
from app.http.errors import BodyTooLarge, Forbidden, InvalidJson, Unauthorized, find_problem
from app.http.middleware import EXCHANGE
from app.http.operation import TemplateRoute
from app.http.requests import INLINE_BYTES_MAX, JsonLimits, check_depth, check_elements
from app.store.texts import ContentCiphers, seal_with
from app.tenants import Caller, RecentCallers, digest
from app.wings.gateway import PREFIX
from app.wings.gateway.exchange import GatewayExchange
from app.wings.gateway.lists import NOT_SENT, item_response, paused_response, raise_if_unsendable
from app.wings.gateway.service import Gateway
from app.wings.gateway.upstream import KEY_HEADER, UpstreamError, identify, legal_name

SIGNED: Final = (
    "the request is signed for this address (AWS Signature Version 4), so the provider would refuse it: use an API key"
)
METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


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
        gateway: Gateway = request.state.services.by_class[Gateway]
        who, away = await self._caller(request)
        exchange = GatewayExchange(gateway, who, request, send, *_target(request))
        if exchange.provider.name not in gateway.upstreams:
            raise errors.NotFound(f"no upstream is set for {exchange.provider.name}")
        if request.headers.get("authorization", "").startswith("AWS4-"):
            raise errors.InvalidRequest(SIGNED)
        exchange.body = await request.body()
        if self._open >= self._most:
            raise errors.Overloaded(f"this process already forwards {self._most} calls", limit=self._most)
        scope[EXCHANGE].release_slot()  # calls that wait for a model have their own limit
        self._open += 1
        try:
            await _cancel_on_disconnect(receive, exchange, _serve(exchange, away=away))
        finally:
            self._open -= 1

    async def _caller(self, request: Request) -> tuple[Caller, bool]:
        """Return the caller, and whether the database is unreachable; in that case only recent callers are accepted.

        Raises the errors of `authenticate`, and ContentsErased.
        """
        secret = request.headers.get(KEY_HEADER)
        hashed = b"" if secret is None else digest(secret)
        try:
            async with asyncio.timeout(self._seconds):
                who = await authenticate(request, secret, ("ingest", "read"), f"{KEY_HEADER}: <key>")
        except (errors.StoreUnavailable, TimeoutError):
            recent = self._recent.find(hashed)
            if recent is None:
                raise errors.StoreUnavailable("the database is unreachable, so this key cannot be checked") from None
            return recent, True
        except (Unauthorized, Forbidden):
            self._recent.refuse(hashed)
            raise
        ciphers: ContentCiphers = request.state.services.ciphers
        try:
            async with asyncio.timeout(self._seconds):
                seal_with(await ciphers.cipher(who.tenant_id))
        except (errors.StoreUnavailable, TimeoutError):
            return who, True
        except errors.ContentsErased:
            self._recent.refuse(hashed)
            raise
        self._recent.admit(hashed, who)
        return who, False


def route(requests_max: int, seconds: float) -> Route:
    """Return the route for all paths under /gateway."""
    return TemplateRoute(
        f"{PREFIX}{{path:path}}", GatewayApp(requests_max, seconds), methods=METHODS, include_in_schema=False
    )


async def _serve(exchange: GatewayExchange, *, away: bool) -> None:
    """Serve a request; with the database `away`, forward it without a context."""
    who, endpoint = exchange.who, exchange.endpoint
    if away:
        identity = None if endpoint is None else identify(exchange.request.headers, exchange.named, None)
        if identity is not None and identity.configured:
            check_session(who, identity.session)
        given, requested = (None, None) if endpoint is None else await _parse(exchange, endpoint)
        if endpoint is not None and given is not None and find_item(endpoint.format, given) is not None:
            raise errors.StoreUnavailable(NOT_SENT.format("the database is unreachable"))
        exchange.mode, exchange.reason = "bypass", find_problem(errors.StoreUnavailable("")).slug
        exchange.unrequesting = given if requested is not None and identity is not None else None
        exchange.use_body_without_compaction()
    elif endpoint is not None:
        await _prepare(endpoint, exchange)
    gateway, session, reason = exchange.gateway, exchange.session, exchange.reason
    failed = exchange.mode == "bypass" and reason not in (AT_PROVIDER, NOT_IN_LOG)
    if failed and gateway.should_log_bypass(who.tenant_id, session or "", reason or ""):
        structlog.get_logger().warning("bypass", session=session, reason=reason)
    gateway.on_call(exchange.provider.name, exchange.mode)
    gateway.forwarded.note(who.tenant_id, exchange.description())
    if exchange.own_response is not None:
        await exchange.send_own_response(exchange.own_response)
        return
    try:
        await exchange.forward()
    except UpstreamError as error:
        structlog.get_logger().warning("upstream", provider=exchange.provider.name, detail=str(error))
        if not exchange.response_started:  # else the connection is closed within the response, as upstream did
            raise (errors.UpstreamLate if error.timed_out else errors.UpstreamFailed)(str(error)) from None
    except TimeoutError:
        structlog.get_logger().warning("a gateway client stopped reading", session=exchange.session)


async def _prepare(endpoint: Endpoint, exchange: GatewayExchange) -> None:
    """Prepare the request for sending: with a context, as it is with a reason, or not at all if the gateway answers it.

    Raises InvalidRequest or NotFound, and the errors of a call with a compaction item that cannot be replaced.
    """
    who, request, gateway = exchange.who, exchange.request, exchange.gateway
    given, requested = await _parse(exchange, endpoint)
    if given is not None:
        given, exchange.place = await gateway.compactions.open(who.tenant_id, endpoint.format, given)
    compacts = given is not None and (endpoint.compacts or is_triggered(endpoint.format, given))
    if endpoint.compacts and not gateway.compactions.answers:
        raise_if_unsendable(exchange.place, NotBudgeted("compactions are the provider's"))
        return
    identity = identify(request.headers, exchange.named, None if given is None else given.value)
    if exchange.place is not None:
        session = exchange.place.session  # that of the messages which only the log has
    elif identity is not None:
        session = identity.session if identity.configured else legal_name(who.session_prefix + identity.session)
    else:
        exchange.reason = "no-session"
        return
    check_session(who, session)
    request.scope[EXCHANGE].assign_session(session)
    exchange.mode, exchange.session = "bypass", session
    requested = _take_compaction(endpoint, exchange, given, requested)
    try:
        if given is None:
            raise NotBudgeted("unreadable")
        if compacts:
            await _compact(endpoint, exchange, given)
            return
        conversation = _read_call(endpoint, exchange, given, requested)
        if endpoint.counts and not conversation.observed:
            exchange.body = await gateway.prepare_count(who.tenant_id, session, conversation)
        elif not endpoint.counts:
            call = await gateway.prepare(who.tenant_id, session, conversation)
            if call.item is not None and requested is not None and requested.pauses:
                exchange.mode, exchange.own_response = "answered", paused_response(conversation, call.item)
                gateway.report_paused(call)
                return
            exchange.call, exchange.body = call, call.body or exchange.body
        exchange.mode = "observed" if conversation.observed else "context"
        exchange.reason = HELD_OUT if conversation.held_out else None
    except Exception as error:
        raise_if_unsendable(exchange.place, error)
        exchange.reason = _reason(error)
        exchange.use_body_without_compaction()
        if exchange.reason == "internal":
            structlog.get_logger().error("gateway", session=session, exc_info=error)


def _take_compaction(
    endpoint: Endpoint, exchange: GatewayExchange, given: Body | None, requested: RequestedCompaction | None
) -> RequestedCompaction | None:
    """Return the compaction that the gateway should make, and note in `exchange` how to forward the call without it.

    None in a session that is held out. Calls on Bedrock do not pause, since only it writes the frames of its streams.
    """
    if _held_out(exchange):
        return None
    exchange.without_beta = None if requested is None and exchange.place is None else BETA
    if requested is None:
        return None
    exchange.unrequesting = given
    return replace(requested, pauses=requested.pauses and not endpoint.versioned)


def _held_out(exchange: GatewayExchange) -> bool | None:
    """Return whether the session is held out; None without a share, or with an item, which no provider can read."""
    if exchange.place is not None:
        return None
    return exchange.gateway.held_out(exchange.who.tenant_id, exchange.session or "")


async def _compact(endpoint: Endpoint, exchange: GatewayExchange, given: Body) -> None:
    """Answer a request for a compaction. Raises NotBudgeted, ContextError or TimeoutError."""
    if not exchange.gateway.compactions.answers:
        raise NotBudgeted("compaction")
    conversation = _read_call(endpoint, exchange, without_trigger(given))
    if conversation.observed:
        raise NotBudgeted("compaction")
    sealed = await exchange.gateway.compact(exchange.who.tenant_id, exchange.session or "", conversation)
    exchange.mode, exchange.own_response = "answered", item_response(endpoint, given, sealed)


def _reason(error: Exception) -> str:
    """Return the reason of a bypass."""
    if isinstance(error, NotBudgeted):
        return str(error)
    if isinstance(error, TimeoutError):
        return "too-slow"
    return find_problem(error).slug if isinstance(error, errors.ContextError) else "internal"


def _read_call(
    endpoint: Endpoint, exchange: GatewayExchange, body: Body, requested: RequestedCompaction | None = None
) -> CallConversation:
    """Return a call's conversation with its upstream's window, its item's place and compaction. Raises NotBudgeted."""
    gateway, held_out = exchange.gateway, _held_out(exchange)
    return replace(
        read_conversation(endpoint, body),
        place=exchange.place,
        served_tokens=gateway.upstreams[exchange.provider.name].window_tokens,
        observed=gateway.observes or held_out is True,
        held_out=held_out,
        compaction=requested,
    )


async def _parse(exchange: GatewayExchange, endpoint: Endpoint) -> tuple[Body | None, RequestedCompaction | None]:
    """Parse the body; return it without its request for a compaction, and that request.

    The request is left in if the provider is to answer it. Both are None if it is not a JSON object within the limits.
    """
    limits = exchange.request.app.state.json_limits
    form = endpoint.format if exchange.gateway.compactions.answers else None
    read = partial(_read, exchange.body, limits, form)
    try:
        return read() if len(exchange.body) <= INLINE_BYTES_MAX else await asyncio.to_thread(read)
    except (BodyTooLarge, InvalidJson, NoObject):
        return None, None


def _read(raw: bytes, limits: JsonLimits, form: str | None) -> tuple[Body, RequestedCompaction | None]:
    """Parse the body, and split it if its format is given. Raises BodyTooLarge, InvalidJson or NoObject."""
    check_elements(raw, limits)
    given = parse(raw)
    check_depth(given.value, limits)
    return (given, None) if form is None else split_request(form, given)


def _target(request: Request) -> tuple[Provider, str, str | None]:
    """Return the provider, its path, and the session in the raw path, if any. Raises NotFound."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    rest = raw.decode("latin-1").partition("?")[0].removeprefix(PREFIX)
    session = None
    if rest.startswith("s/"):
        _, session, rest = (*rest.split("/", 2), "")[:3]
    name, _, path = rest.partition("/")
    provider = PROVIDERS.get(name)
    if provider is None or {".", ".."} & set(path.split("/")):
        raise errors.NotFound(f"there is nothing at {request.url.path}")
    return provider, f"/{path}", None if session is None else unquote(session)


async def _cancel_on_disconnect(receive: Receive, exchange: GatewayExchange, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or cancel it when the client disconnects, so that an unread response is not paid for."""
    task = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not exchange.response_complete:
            task.cancel()

    watching = asyncio.create_task(watch())
    try:
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
    finally:
        watching.cancel()
        task.cancel()
