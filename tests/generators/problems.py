"""A program over the client that openapi-python-client makes from the API's document, for mypy."""

from http import HTTPStatus
from typing import assert_never, assert_type

from palimpsest_client import AuthenticatedClient
from palimpsest_client.api.events import append_events
from palimpsest_client.models import (
    AppendedOut,
    BodyTooLargeProblem,
    ConflictProblem,
    ContentsErasedProblem,
    DuplicateCallProblem,
    EventsIn,
    ForbiddenProblem,
    HeadConflictProblem,
    HeadTooLargeProblem,
    IdempotencyConflictProblem,
    InternalProblem,
    InvalidEventProblem,
    InvalidJsonProblem,
    InvalidRequestProblem,
    MalformedHttpProblem,
    NotFoundProblem,
    NotLocalProblem,
    OverloadedProblem,
    SessionErasedProblem,
    StoreUnavailableProblem,
    TooManyEventsProblem,
    TooManyRequestsProblem,
    TooManySessionsProblem,
    TooSlowProblem,
    UnauthorizedProblem,
    UnknownCallProblem,
)


def append(client: AuthenticatedClient, body: EventsIn) -> int:
    """Append, and return the session's head; match every problem of an append, and no other."""
    answer = append_events.sync("s", client=client, body=body)
    match answer:
        case AppendedOut():
            return answer.head
        case HeadConflictProblem():
            assert_type(answer.head, int)
            return answer.head
        case ConflictProblem() | IdempotencyConflictProblem() | TooManySessionsProblem():
            raise ValueError(answer.detail)
        case DuplicateCallProblem() | InvalidEventProblem() | InvalidJsonProblem() | InvalidRequestProblem():
            raise ValueError(answer.detail)
        case UnknownCallProblem() | BodyTooLargeProblem() | TooManyEventsProblem() | MalformedHttpProblem():
            raise ValueError(answer.detail)
        case ForbiddenProblem() | NotLocalProblem() | UnauthorizedProblem() | NotFoundProblem():
            raise PermissionError(answer.detail)
        case ContentsErasedProblem() | SessionErasedProblem():
            raise PermissionError(answer.detail)
        case OverloadedProblem() | StoreUnavailableProblem() | TooManyRequestsProblem() | InternalProblem():
            raise TimeoutError(HTTPStatus(answer.status).phrase)
        case TooSlowProblem() | HeadTooLargeProblem():
            raise TimeoutError(answer.detail)
        case None:
            raise TimeoutError("a status that the document does not name")
        case _:
            assert_never(answer)


def misspelt(problem: HeadConflictProblem) -> None:
    """Access a field that no problem has."""
    print(problem.haed)  # type: ignore[attr-defined]
