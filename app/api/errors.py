"""One table: error -> problem (RFC 9457). The only place where HTTP statuses are decided."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.api.auth import Forbidden, Unauthorized
from app.api.measure import NOT_REPRODUCIBLE
from app.core import errors

MEDIA_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of problem: its slug is stable, its title says it to a person."""

    slug: str
    status: int
    title: str


class BodyTooLarge(HTTPException):
    """The request's body is over the limit. FastAPI lets only its own kind of error out of reading a body."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is over the limit of {limit} bytes")
        self.limit = limit


INVALID_REQUEST: Final = Problem("invalid-request", 422, "The request breaks a rule of the contract")
INVALID_JSON: Final = Problem("invalid-json", 422, "The body is no JSON text")
BODY_TOO_LARGE: Final = Problem("body-too-large", 413, "The body is over the limit")
UNAUTHORIZED: Final = Problem("unauthorized", 401, "A valid key is needed")
FORBIDDEN: Final = Problem("forbidden", 403, "The key does not allow this")
INTERNAL: Final = Problem("internal", 500, "Something went wrong here")
METHOD: Final = Problem("method-not-allowed", 405, "The resource does not have this method")
NO_ROUTE: Final = Problem("not-found", 404, "There is no such thing")

# The most specific class of an error's ancestry wins.
TABLE: Final[Mapping[type[errors.ContextError], Problem]] = {
    errors.InvalidRequest: INVALID_REQUEST,
    errors.InvalidEvent: Problem("invalid-event", 422, "An event breaks a rule"),
    errors.InvalidMessage: Problem("invalid-message", 422, "A message breaks a rule of its provider's format"),
    errors.InvalidPolicy: Problem("invalid-policy", 422, "A policy knob is set to nonsense"),
    errors.UnknownCall: Problem("unknown-call", 422, "A result names no open call"),
    errors.DuplicateCall: Problem("duplicate-call", 422, "A call reuses the id of an open call"),
    errors.NotFound: NO_ROUTE,
    errors.Conflict: Problem("conflict", 409, "The state has changed meanwhile"),
    errors.HeadConflict: Problem("head-conflict", 409, "expected_head is not the head"),
    errors.IdempotencyConflict: Problem("idempotency-conflict", 409, "The key or id was used with other content"),
    errors.CannotFit: Problem("context-infeasible", 422, "No legal context fits the target"),
    errors.NothingToSend: Problem("nothing-to-send", 422, "The session holds no conversation yet"),
    errors.InjectionOverReserve: Problem("injection-over-reserve", 422, "An injection is larger than its reserve"),
    errors.NotReproducible: Problem("not-reproducible", 500, "A recorded call no longer comes out as it was recorded"),
    errors.StoreUnavailable: Problem("store-unavailable", 503, "The database cannot be reached right now"),
    errors.TooManyStreams: Problem("too-many-streams", 503, "This process serves as many streams as it may"),
}

ALL: Final[tuple[Problem, ...]] = (
    *TABLE.values(),
    INVALID_JSON,
    BODY_TOO_LARGE,
    UNAUTHORIZED,
    FORBIDDEN,
    METHOD,
    INTERNAL,
)


def answer(problem: Problem, detail: str, fields: Mapping[str, object] | None = None) -> JSONResponse:
    """The problem as a response; `fields` are members of its own."""
    body = {"type": f"/problems/{problem.slug}", "title": problem.title, "status": problem.status, "detail": detail}
    headers = {"Retry-After": "1"} if problem.status == 503 else None
    if problem.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return JSONResponse({**body, **(fields or {})}, problem.status, headers, media_type=MEDIA_TYPE)


def problem_of(error: errors.ContextError) -> Problem:
    """The problem of an error, by the nearest ancestor in the table."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def install(app: FastAPI) -> None:
    """Answer every failure as a problem."""
    log = structlog.get_logger()

    @app.exception_handler(errors.ContextError)
    async def _known(request: Request, error: errors.ContextError) -> JSONResponse:
        if isinstance(error, errors.NotReproducible):
            NOT_REPRODUCIBLE.inc()
            log.error("not reproducible", path=request.url.path, detail=error.detail, **error.fields)
        return answer(problem_of(error), error.detail, error.fields)

    @app.exception_handler(BodyTooLarge)
    async def _too_large(_: Request, error: BodyTooLarge) -> JSONResponse:
        return answer(BODY_TOO_LARGE, error.detail, {"limit_bytes": error.limit})

    @app.exception_handler(Unauthorized)
    async def _unauthorized(_: Request, error: Unauthorized) -> JSONResponse:
        return answer(UNAUTHORIZED, error.detail)

    @app.exception_handler(Forbidden)
    async def _forbidden(_: Request, error: Forbidden) -> JSONResponse:
        return answer(FORBIDDEN, error.detail)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        _, *place = first["loc"]  # behind the part of the request that it is in
        where = [str(name) for name in place]
        if first["type"] == "model_attributes_type" and "json" not in request.headers.get("content-type", ""):
            return answer(INVALID_REQUEST, "the body must come as Content-Type: application/json", {"field": ""})
        problem = INVALID_JSON if first["type"] == "json_invalid" else INVALID_REQUEST
        return answer(
            problem, f"{'.'.join(where)}: {first['msg']}" if where else first["msg"], {"field": ".".join(where)}
        )

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 405:
            return answer(METHOD, f"{request.url.path} does not have {request.method}")
        return answer(NO_ROUTE, f"there is nothing at {request.url.path}")

    @app.exception_handler(Exception)
    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        log.error("unhandled", path=request.url.path, exc_info=error)
        return answer(INTERNAL, "the failure has been logged")
