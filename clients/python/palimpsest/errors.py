"""Everything that this package raises, as a tree: by HTTP status, and below that by the kind of problem.

`except ConflictError` takes every 409; `except HeadConflictError` only a wrong `expected_head`. The server describes a
problem as RFC 9457 does: `slug` names its kind, `detail` says what happened, `problem` has all of its members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import httpx2

if TYPE_CHECKING:
    from palimpsest.reply import Logged


class PalimpsestError(Exception):
    """Whatever goes wrong in this package."""


class ConnectionFailed(PalimpsestError):
    """The server could not be reached, or the connection broke before its answer had come."""


class ConnectionTimedOut(ConnectionFailed):
    """The server did not answer in time."""


class UnreadableAnswer(PalimpsestError):
    """The answer is a success but none of this server's: a proxy's page, or JSON of another shape."""


class RecallLoop(PalimpsestError):
    """The model used the recall tool again and again and did nothing else. All it asked for is in the log."""


class ReplyNotLogged(PalimpsestError):
    """The model answered, but the answer could not be logged: `reply` has it, and the error is `__cause__`."""

    def __init__(self, reply: Logged, error: PalimpsestError) -> None:
        super().__init__(f"the model's answer was not logged: {error}")
        self.reply = reply


class StatusError(PalimpsestError):
    """The server answered with an error."""

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


class BadRequestError(StatusError):
    """400: not a request at all."""

    status_of = 400


class AuthenticationError(StatusError):
    """401: no valid API key came with the request."""

    status_of = 401


class PermissionDeniedError(StatusError):
    """403: the key does not allow this."""

    status_of = 403


class NotFoundError(StatusError):
    """404: there is no such thing, or the key does not reach it."""

    status_of = 404


class GoneError(StatusError):
    """410: what was asked for has been erased."""

    status_of = 410


class SessionErasedError(GoneError):
    """The session was erased on request. To create it with its metadata is to begin again under its name."""

    slug_of = "session-erased"


class ContentsErasedError(GoneError):
    """The key that the tenant's contents were sealed with was dropped. Nothing of them can be read again."""

    slug_of = "contents-erased"


class RequestTimeoutError(StatusError):
    """408: the request took too long to arrive."""

    status_of = 408


class ConflictError(StatusError):
    """409: the request does not fit what is there. It is an answer and is never sent again."""

    status_of = 409


class TooLargeError(StatusError):
    """413: the body is over a limit."""

    status_of = 413


class InvalidRequestError(StatusError):
    """422: the request was understood and cannot be done as it stands."""

    status_of = 422

    @property
    def field(self) -> str | None:
        """The field of the request that is wrong, if one is."""
        return self.problem.get("field")


class RateLimitError(StatusError):
    """429: too much at once, even after the retries."""

    status_of = 429


class ServerError(StatusError):
    """500 and above: the server's own failure, even after the retries."""


class NotLocalError(PermissionDeniedError):
    """A server without keys answers only its own machine."""

    slug_of = "not-local"


class HeadConflictError(ConflictError):
    """Somebody else appended first: the session's head is not `expected_head`. Nothing was appended."""

    slug_of = "head-conflict"

    @property
    def head(self) -> int:
        """The session's real head."""
        return int(self.problem["head"])


class IdempotencyConflictError(ConflictError):
    """The key or event id was used before, with other content."""

    slug_of = "idempotency-conflict"


class ErasureCountConflictError(ConflictError):
    """The erasure would erase another number of sessions than `expected`. Nothing was erased."""

    slug_of = "erasure-count-conflict"

    @property
    def sessions(self) -> int:
        """The number of sessions that would be erased."""
        return int(self.problem["sessions"])


class TooManySessionsError(ConflictError):
    """The tenant may have no more sessions."""

    slug_of = "too-many-sessions"


class TooManyLinesError(ConflictError):
    """The session may have no more lines."""

    slug_of = "too-many-lines"


class InvalidEventError(InvalidRequestError):
    """An event is not one that the log can hold."""

    slug_of = "invalid-event"


class InvalidMessageError(InvalidRequestError):
    """A message is not valid in the format it was said to have."""

    slug_of = "invalid-message"


class InvalidPolicyError(InvalidRequestError):
    """The policy is not valid."""

    slug_of = "invalid-policy"


class UnknownCallError(InvalidRequestError):
    """A tool result names no tool call that is open."""

    slug_of = "unknown-call"


class DuplicateCallError(InvalidRequestError):
    """A tool call has the id of one that is still open."""

    slug_of = "duplicate-call"


class ContextInfeasibleError(InvalidRequestError):
    """No valid context fits the budget. `max_tokens` must be at least `minimum_tokens`, or something must go."""

    slug_of = "context-infeasible"

    @property
    def minimum_tokens(self) -> int:
        """The smallest context that would be valid."""
        return int(self.problem["minimum_tokens"])

    @property
    def by_source(self) -> dict[str, int]:
        """What takes the room: tokens by part of the context."""
        return dict(self.problem.get("by_source", {}))


class NothingToSendError(InvalidRequestError):
    """The session holds nothing that a model could be sent yet."""

    slug_of = "nothing-to-send"


class InjectionOverReserveError(InvalidRequestError):
    """Injected content exceeds what is reserved for it."""

    slug_of = "injection-over-reserve"


class NotReproducibleError(ServerError):
    """A recorded call no longer renders to the same bytes. Trying again would not help, so it is not tried."""

    slug_of = "not-reproducible"


class UnavailableError(ServerError):
    """503: the server is too busy, or its database is away, even after the retries."""

    status_of = 503


def _below(kind: type[StatusError]) -> list[type[StatusError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in _below(child))]


_KINDS = _below(StatusError)
BY_SLUG = {one.slug_of: one for one in _KINDS if one.slug_of is not None}
BY_STATUS = {one.status_of: one for one in _KINDS if "status_of" in vars(one) and one.status_of is not None}


def from_response(response: httpx2.Response) -> StatusError:
    """The error for an answer that was read and is not a success."""
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
