"""The table of errors and their problems (RFC 9457), the only place where HTTP statuses are decided."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from app.core import errors
from app.core.log.events import canonical_json

PROBLEM: Final = "palimpsest.problem"
"""The key in a request's scope of the slug of its problem, if it has one."""
MEDIA_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of problem: a stable slug, an HTTP status, and a human-readable title."""

    slug: str
    status: int
    title: str

    def body(self, detail: str) -> dict[str, object]:
        """Return the problem as JSON, without further members."""
        return {"type": f"/problems/{self.slug}", "title": self.title, "status": self.status, "detail": detail}


class BodyTooLarge(HTTPException):
    """The request body exceeds a limit. An HTTPException, because FastAPI wraps any other while it reads a body."""

    def __init__(self, limit: int, unit: str = "bytes") -> None:
        super().__init__(413, f"the body is over the limit of {limit} {unit}")
        self.limit = {f"limit_{unit}": limit}


class InvalidJson(errors.InvalidRequest):
    """The request body is not valid JSON."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, field="")


class Unauthorized(errors.ContextError):
    """The request has no key, or an invalid one."""


class Forbidden(errors.ContextError):
    """The key is valid, but not for this operation."""


class NotLocal(errors.ContextError):
    """The request is not from this machine, and no key was ever created."""


INVALID_REQUEST: Final = Problem("invalid-request", 422, "Invalid request")
INVALID_JSON: Final = Problem("invalid-json", 422, "Body is not valid JSON")
BODY_TOO_LARGE: Final = Problem("body-too-large", 413, "Body too large")
FORBIDDEN: Final = Problem("forbidden", 403, "Not allowed for this API key")
INTERNAL: Final = Problem("internal", 500, "Internal error")
METHOD: Final = Problem("method-not-allowed", 405, "Method not allowed")
NO_ROUTE: Final = Problem("not-found", 404, "Not found")
MALFORMED: Final = Problem("malformed-http", 400, "Not a valid HTTP request")
TOO_SLOW: Final = Problem("too-slow", 408, "Request took too long to arrive")
HEAD_TOO_LARGE: Final = Problem("head-too-large", 431, "Header fields too large")

# The nearest ancestor of an error's class applies.
TABLE: Final[Mapping[type[errors.ContextError], Problem]] = {
    errors.InvalidRequest: INVALID_REQUEST,
    InvalidJson: INVALID_JSON,
    errors.InvalidEvent: Problem("invalid-event", 422, "Invalid event"),
    errors.InvalidMessage: Problem("invalid-message", 422, "Message is not valid in its provider's format"),
    errors.InvalidPolicy: Problem("invalid-policy", 422, "Invalid policy"),
    errors.UnknownCall: Problem("unknown-call", 422, "Tool result without an open tool call"),
    errors.DuplicateCall: Problem("duplicate-call", 422, "Tool call with the id of one that is still open"),
    errors.NotFound: NO_ROUTE,
    errors.Conflict: Problem("conflict", 409, "Conflict with the current state"),
    errors.HeadConflict: Problem("head-conflict", 409, "expected_head is not the session's head"),
    errors.IdempotencyConflict: Problem("idempotency-conflict", 409, "Key or event id already used with other content"),
    errors.ErasureCountConflict: Problem("erasure-count-conflict", 409, "Erasure of another number of sessions"),
    errors.CannotFit: Problem("context-infeasible", 422, "No valid context fits the token budget"),
    errors.NothingToSend: Problem("nothing-to-send", 422, "Session has nothing to send to a model yet"),
    errors.InjectionOverReserve: Problem("injection-over-reserve", 422, "Injected content exceeds its reserve"),
    errors.NotReproducible: Problem("not-reproducible", 500, "Recorded call can no longer be reproduced"),
    errors.OutsidePrefix: FORBIDDEN,
    errors.TooManySessions: Problem("too-many-sessions", 409, "Session limit of the tenant reached"),
    errors.TooManyLines: Problem("too-many-lines", 409, "Line limit of the session reached"),
    errors.TooManyRequests: Problem("too-many-requests", 429, "Too many concurrent requests of the tenant"),
    errors.TooManyEvents: Problem("too-many-events", 429, "Too many events per second from the tenant"),
    errors.SessionErased: Problem("session-erased", 410, "Session was erased on request"),
    errors.ContentsErased: Problem("contents-erased", 410, "Contents of the tenant erased"),
    errors.StoreUnavailable: Problem("store-unavailable", 503, "Storage unavailable"),
    errors.TooManyStreams: Problem("too-many-streams", 503, "Stream limit of this process reached"),
    errors.Overloaded: Problem("overloaded", 503, "Request limit of this process reached"),
    errors.UpstreamFailed: Problem("upstream-failed", 502, "Provider could not be reached"),
    errors.UpstreamLate: Problem("upstream-late", 504, "Provider did not answer in time"),
    Unauthorized: Problem("unauthorized", 401, "Missing or invalid API key"),
    Forbidden: FORBIDDEN,
    NotLocal: Problem("not-local", 403, "Only local requests are allowed while no API key is required"),
}

ALL: Final = (*dict.fromkeys(TABLE.values()), BODY_TOO_LARGE, METHOD, MALFORMED, TOO_SLOW, HEAD_TOO_LARGE, INTERNAL)


def problem_response(
    request: Request,
    problem: Problem,
    detail: str,
    fields: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem as a response, with `fields` as further members; put its slug into the scope for the log."""
    request.scope[PROBLEM] = problem.slug
    body = problem.body(detail)
    if request.scope["path"].startswith(request.app.state.foreign_paths):  # clients of other APIs read the error there
        body["error"] = {"type": problem.slug, "message": detail}
    sent = dict(headers or {})
    if problem.status in (429, 503):
        sent["Retry-After"] = str((fields or {}).get("retry_after_seconds", 1))
    if problem.status == 401:
        sent["WWW-Authenticate"] = "Bearer"
    # The detail may quote characters of the request that plain JSON output cannot encode.
    text = canonical_json({**body, **(fields or {})})
    return Response(text, problem.status, sent, media_type=MEDIA_TYPE)


def find_problem(error: errors.ContextError) -> Problem:
    """Return the problem of an error, by the nearest ancestor in the table."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def error_response(request: Request, error: Exception) -> Response:
    """Return the problem of an error as a response; log the error if the server is at fault."""
    log = structlog.get_logger()
    if not isinstance(error, errors.ContextError):
        log.error("unhandled", path=request.scope["path"], exc_info=error)
        return problem_response(request, INTERNAL, "the failure has been logged")
    if isinstance(error, errors.NotReproducible):
        log.error("not reproducible", path=request.scope["path"], detail=error.detail, **error.fields)
    return problem_response(request, find_problem(error), error.detail, error.fields)


def install(app: FastAPI) -> None:
    """Install handlers that turn every error into a problem response."""

    @app.exception_handler(errors.ContextError)
    async def _known(request: Request, error: errors.ContextError) -> Response:
        return error_response(request, error)

    @app.exception_handler(BodyTooLarge)
    async def _too_large(request: Request, error: BodyTooLarge) -> Response:
        return problem_response(request, BODY_TOO_LARGE, error.detail, error.limit)

    @app.exception_handler(ClientDisconnect)
    async def _gone(request: Request, _: ClientDisconnect) -> Response:
        return problem_response(request, TOO_SLOW, "the connection was closed before the whole request had arrived")

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        _, *place = first["loc"]  # without the part of the request, such as "body"
        where = [str(name) for name in place]
        detail = f"{'.'.join(where)}: {first['msg']}" if where else first["msg"]
        return problem_response(request, INVALID_REQUEST, detail, {"field": ".".join(where)})

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            detail = f"{request.url.path} does not allow {request.method}"
            return problem_response(request, METHOD, detail, headers={"Allow": _methods(app, request.scope)})
        if error.status_code == 404:
            return problem_response(request, NO_ROUTE, f"there is nothing at {request.url.path}")
        return problem_response(request, INVALID_REQUEST, str(error.detail), {"field": ""})


def _methods(app: FastAPI, scope: Scope) -> str:
    """Return the methods of all routes at a path."""
    found: set[str] = set()
    for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"):
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes):
            found.add(method)
    return ", ".join(sorted(found))
