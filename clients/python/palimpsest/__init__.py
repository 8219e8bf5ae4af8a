"""The client of Palimpsest, which keeps an agent's context within its budget.

Begin with `Palimpsest().session("a name of yours", model="…", format="openai")`; the README walks through the rest.
"""

from palimpsest._version import VERSION as __version__
from palimpsest.call import AsyncCall, Call
from palimpsest.client import AsyncPalimpsest, Palimpsest
from palimpsest.errors import (
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ConnectionFailed,
    ConnectionTimedOut,
    ContextInfeasibleError,
    DuplicateCallError,
    HeadConflictError,
    IdempotencyConflictError,
    InjectionOverReserveError,
    InvalidEventError,
    InvalidMessageError,
    InvalidPolicyError,
    InvalidRequestError,
    NotFoundError,
    NothingToSendError,
    NotLocalError,
    NotReproducibleError,
    PalimpsestError,
    PermissionDeniedError,
    RateLimitError,
    RecallLoop,
    ReplyNotLogged,
    RequestTimeoutError,
    ServerError,
    StatusError,
    TooLargeError,
    TooManySessionsError,
    UnavailableError,
    UnknownCallError,
)
from palimpsest.explain import Explanation, LeftOut
from palimpsest.pages import AsyncPage, AsyncPager, Page
from palimpsest.reply import AsyncReply, Reply, ToolCall
from palimpsest.session import AsyncSession, Session
from palimpsest.streams import StreamEvent

__all__ = [
    "AsyncCall",
    "AsyncPage",
    "AsyncPager",
    "AsyncPalimpsest",
    "AsyncReply",
    "AsyncSession",
    "AuthenticationError",
    "BadRequestError",
    "Call",
    "ConflictError",
    "ConnectionFailed",
    "ConnectionTimedOut",
    "ContextInfeasibleError",
    "DuplicateCallError",
    "Explanation",
    "HeadConflictError",
    "IdempotencyConflictError",
    "InjectionOverReserveError",
    "InvalidEventError",
    "InvalidMessageError",
    "InvalidPolicyError",
    "InvalidRequestError",
    "LeftOut",
    "NotFoundError",
    "NotLocalError",
    "NotReproducibleError",
    "NothingToSendError",
    "Page",
    "Palimpsest",
    "PalimpsestError",
    "PermissionDeniedError",
    "RateLimitError",
    "RecallLoop",
    "Reply",
    "ReplyNotLogged",
    "RequestTimeoutError",
    "ServerError",
    "Session",
    "StatusError",
    "StreamEvent",
    "TooLargeError",
    "TooManySessionsError",
    "ToolCall",
    "UnavailableError",
    "UnknownCallError",
    "__version__",
]
