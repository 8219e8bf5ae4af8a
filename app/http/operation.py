"""The declaration of an operation, in one place: path, scope, access, responses, and the checks before its endpoint.

    router = Resource("visibility")

    @router.operation("PATCH", "/v1/sessions/{sid}/visibility", scope="ingest", problems=("conflict",))
    async def patch_visibility(sid: Sid, body: VisibilityIn, who: Who, service: Service) -> VisibilityOut:
        ...

The function's name, or `name`, is the operation's id, from which clients generate their function names; it must
never change. Its docstring is the description in the API document. Before it runs, the caller is authenticated, the
scope and the session prefix of its key and the query are checked, and the session's id in the path is resolved to a
line. Only then is the body read. An operation that takes `Idempotent` answers a repeated key with its first response.
The response to a read of the past (`past_service`) may be slightly out of date: a wing may serve it from a replica.
"""

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from fastapi import Depends, Header, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from app.core.errors import Conflict, InvalidRequest, SessionGone
from app.core.log.segments import session_of
from app.http.auth import PrefixAccess, authenticate_bearer, check_prefix, resolve_line
from app.http.middleware import EXCHANGE
from app.http.openapi import KEY_CHARS_MAX, KEY_DESCRIPTION, KEY_SCHEME, PAST_SERVICES
from app.http.openapi import problems as responses_of
from app.http.requests import ParsedRequest, check_query
from app.store import answers
from app.store.answers import AlreadyAnswered, KeyClaim, ResponseToStore
from app.store.engine import Database
from app.store.ids import session_ref
from app.tenants import Caller

CALLER: Final = "palimpsest.caller"
"""The key in a request's scope of its caller."""

KeyScope = Literal["ingest", "read", "audit", "admin"]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class Operation:
    """The access rules of an operation.

    `scope`: the scope that the caller's key needs. `access`: the data that it concerns. `resolves_line`: whether the
    session's id in the path is resolved to its current line; False for an operation that concerns all lines or resolves
    the id itself.
    """

    name: str
    scope: KeyScope
    access: PrefixAccess = PrefixAccess.SESSION
    resolves_line: bool = True

    async def admit(self, request: Request) -> Caller:
        """Authenticate the caller, check the request, and make it act for the caller's tenant.

        Raises Unauthorized, Forbidden, TooManyRequests, ContentsErased, OutsidePrefix, NotFound or InvalidRequest.
        """
        who = await authenticate_bearer(request, self.scope)
        if who.session_prefix:
            check_prefix(request, who, self.access)
        await check_query(request)
        if self.resolves_line:
            await resolve_line(request, who)
        request.scope[CALLER] = who
        return who


async def _caller(request: Request) -> Caller:
    who: Caller = request.scope[CALLER]
    return who


Who = Annotated[Caller, Depends(_caller)]
"""The caller, as a parameter of an endpoint."""


class TemplateRoute(Route):
    """A route to an ASGI application. It puts itself into the scope, as FastAPI's routes do, for the access log."""

    def matches(self, scope: AsgiScope) -> tuple[Match, AsgiScope]:
        """Match as Route does, and add the route to the scope."""
        match, found = super().matches(scope)
        return match, {**found, "route": self} if found else found


class OperationRoute(APIRoute):
    """The route of an operation. The caller is admitted before FastAPI reads the body.

    An endpoint whose only parameters are the request and the caller parses the request itself, and is called without
    FastAPI's resolution of parameters, which would take as long as the append itself.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], *, operation: Operation, **options: Any) -> None:
        self.operation = operation
        super().__init__(path, endpoint, operation_id=operation.name, **options)
        if path.endswith("_id}"):  # or an id would match `{compaction_id}:retry`, another operation
            self.path_regex = re.compile(self.path_regex.pattern.removesuffix("[^/]+)$") + "[^/:]+)$")
        if list(signature(endpoint).parameters) == ["request", "who"]:
            self.app = self._app(endpoint)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that FastAPI calls with each request."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            await self.operation.admit(request)
            return await handle(await ParsedRequest.of(request) if self.body_field else request)

        return handler

    def _app(self, endpoint: Callable[[Request, Caller], Awaitable[Response]]) -> ASGIApp:
        async def app(scope: AsgiScope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            response = await endpoint(request, await self.operation.admit(request))
            await response(scope, receive, send)

        return app


class Resource:
    """The operations of one resource, under one tag of the API document.

    `schemas`: models that the document describes although no operation declares them. `scope` and `access` are those of
    operations that state none of their own.
    """

    def __init__(
        self,
        tag: str,
        schemas: Sequence[type[BaseModel]] = (),
        *,
        scope: KeyScope | None = None,
        access: PrefixAccess = PrefixAccess.SESSION,
    ) -> None:
        self.tag = tag
        self.schemas = schemas
        self.routes: list[OperationRoute] = []
        self._scope = scope
        self._access = access

    def operation(
        self,
        method: str,
        path: str,
        *,
        scope: KeyScope | None = None,
        access: PrefixAccess | None = None,
        resolves_line: bool = True,
        name: str | None = None,
        returns: Any = None,
        status: int = 200,
        also: Sequence[int] = (),
        problems: Sequence[str] = (),
        **options: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare the decorated function as an operation, with the rules `scope` to `resolves_line` of `Operation`.

        `name`: its id, by default the function's name. `returns`: the model of the response, by default the one that
        the function is annotated to return. `status`: the status of success; `also`: further ones, with the same model.
        `problems`: the slugs of its problems, besides those that every operation has, and `not-found`, which every
        operation on a session has. `options` are FastAPI's. Raises ValueError if it has no scope, or if the path and
        `access` disagree on whether it concerns one session.
        """
        scope, access = scope or self._scope, access or self._access
        if scope is None:
            raise ValueError(f"{method} {path} has no scope")
        if ("{sid}" in path) is not (access is PrefixAccess.SESSION):
            raise ValueError(f"{method} {path} cannot have the access {access.value!r}")
        if access is PrefixAccess.SESSION and "not-found" not in problems:
            problems = ("not-found", *problems)

        def declare(endpoint: Endpoint) -> Endpoint:
            annotated = signature(endpoint).return_annotation
            model = annotated if returns is None and isinstance(annotated, type(BaseModel)) else returns
            responses = {code: {"model": model} for code in also} | options.pop("responses", {})
            options["openapi_extra"] = options.get("openapi_extra", {}) | {"security": [{KEY_SCHEME: [scope]}]}
            if status == 204:
                options["response_class"] = Response
            route = OperationRoute(
                path,
                endpoint,
                operation=Operation(name or endpoint.__name__, scope, access, resolves_line),
                methods=[method],
                tags=[self.tag],
                response_model=model,
                status_code=status,
                responses=responses | responses_of(*problems),
                **options,
            )
            self.routes.append(route)
            return endpoint

        return declare


_T = TypeVar("_T")


def service(kind: type[_T]) -> Callable[[Request], Awaitable[_T]]:
    """Return the dependency that gives a route the application's service of a class."""

    async def found(request: Request) -> _T:
        one: _T = request.state.services.by_class[kind]
        return one

    return found


_Answer = TypeVar("_Answer")
_Freshness = Annotated[
    str | None, Header(alias="Cache-Control", description="`no-cache` requests the newest data, from the primary.")
]


class PastReader:
    """Runs reads of the past on the primary. A wing replaces it by providing a service that is a subclass."""

    @property
    def replica_state(self) -> str | None:
        """The state of the replica; None if there is none."""
        return None

    async def read(self, operation: Callable[[], Awaitable[_Answer]], *, newest: bool) -> tuple[_Answer, float | None]:
        """Return an operation's result and its maximum age in seconds, None if it was read on the primary; `newest`
        requires the primary."""
        return await operation(), None


_PRIMARY: Final = PastReader()


def past_reader(request: Request) -> PastReader:
    """Return the wing's service for reads of the past, or the one that uses the primary."""
    return next((one for one in request.state.services.others if isinstance(one, PastReader)), _PRIMARY)


class PastService(Generic[_T]):
    """A service for one request. Call it with a function of the service, which then runs through the PastReader."""

    def __init__(self, request: Request, kind: type[_T], *, newest: bool) -> None:
        self._request = request
        self._service: _T = request.state.services.by_class[kind]
        self._newest = newest

    async def __call__(self, method: Callable[[_T], Awaitable[_Answer]]) -> _Answer:
        """Return the service's result, and put its age into the scope for the `Age` header."""
        answer, age = await past_reader(self._request).read(lambda: method(self._service), newest=self._newest)
        if age is not None:
            self._request.scope[EXCHANGE].age = math.ceil(age)
        return answer


def past_service(kind: type[_T]) -> Callable[..., Awaitable[PastService[_T]]]:
    """Return the dependency that gives a route a PastService for the service `kind`."""

    async def found(request: Request, cache_control: _Freshness = None) -> PastService[_T]:
        return PastService(request, kind, newest="no-cache" in (cache_control or "").lower())

    PAST_SERVICES.add(found)
    return found


Key = Annotated[
    str | None, Header(alias="Idempotency-Key", min_length=1, max_length=KEY_CHARS_MAX, description=KEY_DESCRIPTION)
]
Done = TypeVar("Done")
"""The result of an operation."""


def idempotency_key(request: Request) -> str | None:
    """Return the idempotency key of a request whose endpoint parses it itself, or None. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_CHARS_MAX:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {KEY_CHARS_MAX} characters", field="Idempotency-Key")
    return key


class Idempotency:
    """The idempotency of one request; `claim` is None without a key: such a request is always executed."""

    def __init__(self, request: Request, who: Caller, body: BaseModel, key: str | None) -> None:
        self._database: Database = request.state.services.database
        self.claim: KeyClaim | None = None
        if key is not None:
            tenant_id, sid = who.tenant_id, request.path_params["sid"]
            about = sorted(f"{name}={value}" for name, value in request.path_params.items() if name != "sid")
            text = f"{request.scope['route'].operation_id} {about} {body.model_dump()!r}"
            request_sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            self.claim = KeyClaim(session_ref(tenant_id, session_of(sid)), key, request_sha256)

    async def stored_response(self) -> Mapping[str, Any] | None:
        """Return the response stored under the key; None if there is none, or no key. Raises IdempotencyConflict."""
        return None if self.claim is None else await answers.find_claimed(self._database, self.claim)

    def response_to_store(self, to_response: Callable[[Done], Mapping[str, Any]]) -> ResponseToStore[Done] | None:
        """Return what the operation must store in its transaction; None without a key."""

        async def answer(done: Done) -> Mapping[str, Any]:
            return to_response(done)

        return None if self.claim is None else ResponseToStore(self.claim, answer)

    async def concurrent_response(self) -> Mapping[str, Any]:
        """Return the response to the concurrent request that was faster, after this one raised AlreadyAnswered.

        Raises IdempotencyConflict, or Conflict if there is none.
        """
        found = await self.stored_response()
        if found is None:
            raise Conflict("the session is being erased")
        return found

    async def run_once(
        self,
        model: type[BaseModel],
        make: Callable[[ResponseToStore[Done] | None], Awaitable[Done]],
        show: Callable[[Done], Any],
    ) -> Any:
        """Return the first response if there is one, else the result of `make`, converted by `show`.

        `make` does the work and must store the ResponseToStore that it is given in the same transaction. The stored
        response is JSON of `model`. It is returned with 200 and without validation: an earlier release, whose model
        lacked a field, may have stored it.
        """
        if (kept := await self.stored_response()) is not None:
            return JSONResponse(kept)
        try:
            made = await make(self.response_to_store(lambda done: _to_json(model, show(done))))
        except AlreadyAnswered:
            return JSONResponse(await self.concurrent_response())
        return show(made)

    async def run_repeatable(
        self, model: type[BaseModel], make: Callable[[], Awaitable[Any]], *, status: int = 200, nulls: bool = True
    ) -> JSONResponse:
        """Return the first response if there is one, else that of `make`, which may safely be executed twice.

        The response is stored after the operation, as JSON of `model`; if another request was faster, its response is
        returned, as in `run_once`. `nulls`: whether it has fields that are null. Raises IdempotencyConflict.
        """
        response = await self.stored_response()
        if response is None:
            response = _to_json(model, await make())
            try:
                if self.claim is not None:
                    async with self._database.transaction() as tx:
                        await answers.store_claimed(tx, self.claim, response)
            except AlreadyAnswered:
                response = await self.stored_response() or response
            except SessionGone:
                pass
        return JSONResponse(jsonable_encoder(response, exclude_none=not nulls), status)


def _to_json(model: type[BaseModel], made: Any) -> Mapping[str, Any]:
    return model.model_validate(made, from_attributes=True).model_dump(mode="json", by_alias=True)


async def _idempotent(request: Request, who: Who, key: Key = None) -> Callable[[BaseModel], Idempotency]:
    return lambda body: Idempotency(request, who, body, key)


Idempotent = Annotated[Callable[[BaseModel], Idempotency], Depends(_idempotent)]
"""An endpoint's parameter: a function that returns the Idempotency of the request, given its body."""
