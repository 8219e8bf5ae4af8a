"""All errors that this package raises, as a tree: by HTTP status, and below that by the kind of problem.

`except ConflictError` catches every 409; `except HeadConflictError` only a wrong `expected_head`. The server describes
a problem as RFC 9457 does: `slug` names its kind, `detail` describes the occurrence, `problem` has all of its members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import httpx2

from palimpsest._model import decode
from palimpsest.types import AppendedOut

if TYPE_CHECKING:
    from palimpsest.reply import LoggedAnswer


class PalimpsestError(Exception):
    """The base of all errors in this package."""


class ConnectionFailed(PalimpsestError):
    """The server could not be reached, or the connection broke before the response arrived."""


class ConnectionTimedOut(ConnectionFailed):
    """The server did not respond in time."""


class UnreadableAnswer(PalimpsestError):
    """The response is a success but not from a Palimpsest server: a proxy's page, or JSON of another shape."""


class RecallLoop(PalimpsestError):
    """The model repeatedly did nothing but use the recall tool. All of its calls and their results are in the log."""


class ReplyNotLogged(PalimpsestError):
    """The model's answer could not be logged. It is in `reply`, and the error is `__cause__`."""

    def __init__(self, reply: LoggedAnswer, error: PalimpsestError) -> None:
        super().__init__(f"the model's answer was not logged: {error}")
        self.reply = reply


class StatusError(PalimpsestError):
    """The server responded with an error."""

    slug_of: ClassVar[str | None] = None
    status_of: ClassVar[int | None] = None

    def __init__(self, problem: Mapping[str, Any], response: httpx2.Response) -> None:
        self.problem = dict(problem)
        """All members of the problem, such as `head` of a `head-conflict`."""
        self.response = response
        self.status = response.status_code
        self.slug: str | None = str(problem["type"]).rpartition("/")[2] if "type" in problem else None
        self.title: str = str(problem.get("title") or response.reason_phrase)
        self.detail: str = str(problem.get("detail") or "")
        super().__init__(f"{self.status} {self.slug or self.title}: {self.detail or self.title}")

    @property
    def part(self) -> str | None:
        """The part of a step in one request that failed: `outcome`, `append` or `context`; else None."""
        return self.problem.get("part")

    @property
    def appended(self) -> AppendedOut | None:
        """The result of the step's append, which stays made if only the context failed."""
        appended = self.problem.get("appended")
        return decode(AppendedOut, appended) if isinstance(appended, dict) else None


class BadRequestError(StatusError):
    """400: the server did not receive a valid HTTP request."""

    status_of = 400


class AuthenticationError(StatusError):
    """401: the request has no valid API key."""

    status_of = 401


class PermissionDeniedError(StatusError):
    """403: the key does not allow this."""

    status_of = 403


class NotFoundError(StatusError):
    """404: the resource does not exist, or the key has no access to it."""

    status_of = 404


class GoneError(StatusError):
    """410: the requested data was erased."""

    status_of = 410


class SessionErasedError(GoneError):
    """The session was erased on request. To start again under its name, create it with its metadata."""

    slug_of = "session-erased"


class ContentsErasedError(GoneError):
    """The key that the tenant's contents were encrypted with was dropped, so they can never be read again."""

    slug_of = "contents-erased"


class RequestTimeoutError(StatusError):
    """408: the request took too long to arrive."""

    status_of = 408


class ConflictError(StatusError):
    """409: the request conflicts with the current state. It is never retried."""

    status_of = 409


class TooLargeError(StatusError):
    """413: the body is over a limit."""

    status_of = 413


class InvalidRequestError(StatusError):
    """422: the request was understood but cannot be executed."""

    status_of = 422

    @property
    def field(self) -> str | None:
        """The field of the request at fault, if any."""
        return self.problem.get("field")


class RateLimitError(StatusError):
    """429: a limit was exceeded, even after the retries."""

    status_of = 429


class ServerError(StatusError):
    """500 and above: the server failed, even after the retries."""


class NotLocalError(PermissionDeniedError):
    """A server without keys answers only requests from its own machine."""

    slug_of = "not-local"


class HeadConflictError(ConflictError):
    """Events were appended in the meantime: the session's head is not `expected_head`. Nothing was appended."""

    slug_of = "head-conflict"

    @property
    def head(self) -> int:
        """The session's actual head."""
        return int(self.problem["head"])


class IdempotencyConflictError(ConflictError):
    """The idempotency key or event id was used before with different content."""

    slug_of = "idempotency-conflict"


class ErasureCountConflictError(ConflictError):
    """The erasure would erase a different number of sessions than `expected`. Nothing was erased."""

    slug_of = "erasure-count-conflict"

    @property
    def sessions(self) -> int:
        """The number of sessions that would be erased."""
        return int(self.problem["sessions"])


class TooManySessionsError(ConflictError):
    """The tenant has reached its limit of sessions."""

    slug_of = "too-many-sessions"


class TooManyLinesError(ConflictError):
    """The session has reached its limit of lines."""

    slug_of = "too-many-lines"


class InvalidEventError(InvalidRequestError):
    """An event is invalid."""

    slug_of = "invalid-event"


class InvalidMessageError(InvalidRequestError):
    """A message is not valid in the given format."""

    slug_of = "invalid-message"


class InvalidPolicyError(InvalidRequestError):
    """The policy is not valid."""

    slug_of = "invalid-policy"


class UnknownCallError(InvalidRequestError):
    """A tool result names no open tool call."""

    slug_of = "unknown-call"


class DuplicateCallError(InvalidRequestError):
    """A tool call has the same id as one that is still open."""

    slug_of = "duplicate-call"


class ContextInfeasibleError(InvalidRequestError):
    """No valid context fits the target. The smallest one has `minimum_tokens`."""

    slug_of = "context-infeasible"

    @property
    def minimum_tokens(self) -> int:
        """The size of the smallest valid context, in the model's tokens."""
        return int(self.problem["minimum_tokens"])

    @property
    def by_source(self) -> dict[str, int]:
        """Tokens by part of the smallest context."""
        return dict(self.problem.get("by_source", {}))


class NothingToSendError(InvalidRequestError):
    """The session has nothing to send to a model yet."""

    slug_of = "nothing-to-send"


class InjectionOverReserveError(InvalidRequestError):
    """Injected content exceeds its reserve."""

    slug_of = "injection-over-reserve"


class NotReproducibleError(ServerError):
    """A recorded call no longer renders to the same bytes. It is not retried, since that would not help."""

    slug_of = "not-reproducible"


class UnavailableError(ServerError):
    """503: the server is too busy, or its database is unreachable, even after the retries."""

    status_of = 503


def _below(kind: type[StatusError]) -> list[type[StatusError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in _below(child))]


_KINDS = _below(StatusError)
BY_SLUG = {one.slug_of: one for one in _KINDS if one.slug_of is not None}
BY_STATUS = {one.status_of: one for one in _KINDS if "status_of" in vars(one) and one.status_of is not None}


def from_response(response: httpx2.Response) -> StatusError:
    """Return the error for an unsuccessful response that was read."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):  # a proxy's page
        problem = {"detail": response.text[:500]}
    slug = str(problem.get("type", "")).rpartition("/")[2]
    kind = BY_SLUG.get(slug) or BY_STATUS.get(response.status_code)
    if kind is None:
        kind = ServerError if response.status_code >= 500 else StatusError
    return kind(problem, response)
