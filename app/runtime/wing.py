"""Wings: parts of the server that can be deleted with their folder.

Each package in `app/wings` has a value `WING`: the parts that it adds. Nothing outside imports a wing, and no wing
imports another. Requests through the gateway are therefore remembered here for the wing that shows them.
"""

import pkgutil
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from pydantic import BaseModel

if TYPE_CHECKING:
    import asyncio

    import typer
    from starlette.routing import BaseRoute

    from app.core.assembly.inputs import ContextRequest
    from app.core.errors import ContextError
    from app.core.log.events import Json
    from app.core.tokens.models import CacheProfile
    from app.http.middleware import Exchange
    from app.http.operation import Resource
    from app.providers import Summarizer
    from app.resources.contexts.service import ContextAnswer
    from app.resources.feedback.measurements import Verdict
    from app.runtime.wiring import Services
    from app.store.driver import DriverConnection, FindPlacement, Placement
    from app.store.engine import Database
    from app.store.texts import ContentCiphers
    from app.worker import FollowUp, JobGroup


SENSITIVE: Final = "sensitive"
"""Marks a setting whose plain string may hold a secret: `Annotated[str, SENSITIVE]`."""

MakeJobs: TypeAlias = "Callable[[Database], JobGroup]"
"""Makes jobs for a worker's database."""
MakeFollowUp: TypeAlias = "Callable[[Database], FollowUp]"
"""Makes the work after a compaction for a worker's database."""


def _nothing(*_: Any) -> Any:
    return ()


def _no_context(*_: Any) -> nullcontext[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Callbacks for metrics. By default they do nothing."""

    request: "Callable[[Exchange], AbstractContextManager[object]]" = _no_context
    """Makes a context for the time of a request and its response."""
    context: "Callable[[ContextRequest, ContextAnswer | ContextError], None]" = _nothing
    """Gets each request for a context, and its outcome."""
    report: "Callable[[Verdict], None]" = _nothing
    """Gets the verdict on each reported outcome of a call."""
    pool_wait: Callable[[float], None] = _nothing
    """Gets the seconds that it took to get a connection."""
    stream: Callable[[], AbstractContextManager[object]] = _no_context
    """Makes a context for the time of a stream."""
    gateway_call: Callable[[str, str], None] = _nothing
    """Gets the provider and the mode of each request through the gateway."""
    gateway_ping: Callable[[str, float], None] = _nothing
    """Gets the outcome of each ping of the gateway, and its price in uncached input tokens."""
    replica_check: Callable[[str, float | None], None] = _nothing
    """Gets the replica's state and the age of its data, if known."""
    replica_read: Callable[[str], None] = _nothing
    """Gets which server served a read that a replica may serve, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """The parts that a wing adds to the server. Functions get the server's settings, with the wing's own among them.

    Everything that takes long to import is imported inside these functions, because every process imports the packages
    of all wings.
    """

    settings: type[BaseModel] | None = None
    """Fields that become settings of the server."""
    services: "Callable[[Any, Services], Iterable[object]]" = _nothing
    """Services that routes request by their class; those with a method `aclose` are closed at the end."""
    routes: "Callable[[Any], Iterable[Resource | BaseRoute]]" = _nothing
    """Resources and routes of the API."""
    lifespan: "Callable[[Any, Services, asyncio.Event], AbstractAsyncContextManager[None]]" = _no_context
    """A context for the time in which the application serves; the event is set when the server begins to stop."""
    jobs: "Callable[[Any], Sequence[MakeJobs]]" = _nothing
    """Jobs of a worker."""
    after_compaction: "Callable[[Any], Sequence[MakeFollowUp]]" = _nothing
    """Work that follows each compaction."""
    commands: "Callable[[typer.Typer], object]" = _nothing
    """Adds commands to the command line."""
    summarizers: "Callable[[Any], Iterable[tuple[str, Summarizer]]]" = _nothing
    """Models that write summaries, by the names that settings and policies use."""
    ciphers: "Callable[[Any, Database], ContentCiphers] | None" = None
    """The ciphers of tenants' contents; at most one wing has them."""
    tables: tuple[str, ...] = ()
    """Tables of a session's data that are deleted with it by a foreign key. An erasure counts their rows."""
    foreign_paths: tuple[str, ...] = ()
    """Prefixes of paths for clients of other APIs, whose problems have a member `error` for them."""
    start: Callable[[Any], AbstractContextManager[None]] = _no_context
    """A context for a command that runs the server, entered before modules are imported and processes forked."""
    process: Callable[[Any], AbstractContextManager[None]] = _no_context
    """A context for each process that serves or works."""
    observers: Callable[[], Observers] | None = None
    """Callbacks for metrics; at most one wing has them."""
    find_placement: "FindPlacement | None" = None
    """Returns the placement of a database whose tables are not all on one server; None for another database."""


@cache
def installed() -> tuple[Wing, ...]:
    """Return the installed wings, ordered by name; none if `app.wings` has been removed."""
    try:
        folder = import_module("app.wings").__path__
    except ModuleNotFoundError:
        return ()
    return tuple(import_module(f"app.wings.{found.name}").WING for found in pkgutil.iter_modules(folder))


@cache
def observers() -> Observers:
    """Return the observers of the wing that has them, or ones that do nothing."""
    return next((wing.observers() for wing in installed() if wing.observers is not None), Observers())


def ciphers(settings: Any, database: "Database") -> "ContentCiphers":
    """Return the ciphers of tenants' contents, of the wing that has any."""
    from app.store.texts import ContentCiphers

    made = (wing.ciphers(settings, database) for wing in installed() if wing.ciphers is not None)
    return next(made, ContentCiphers())


async def find_placement(raw: "DriverConnection", database: "Database") -> "Placement | None":
    """Return the placement that a wing finds for a database, given a connection to it."""
    for wing in installed():
        if wing.find_placement is not None and (found := await wing.find_placement(raw, database)) is not None:
            return found
    return None


CALLS_MAX: Final = 200
"""Number of requests that are remembered of a tenant."""
TENANTS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class ForwardedCall:
    """A request through a gateway: to which provider, in which mode, and the reason if it was not replaced.

    `line` and `call_id` name the recorded call, if there is one. `tokens_sent` is the size of its context if that was
    sent, `potential_tokens` if the gateway only observes, `tokens_wanted` the size of the whole conversation.
    """

    provider: str
    path: str
    mode: str
    reason: str | None = None
    session: str | None = None
    line: str | None = None
    call_id: UUID | None = None
    tokens_sent: int | None = None
    tokens_wanted: int | None = None
    potential_tokens: int | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class AcceptedCall:
    """A call through a gateway whose context the provider accepted: its record, and the request that was sent.

    `request` is the client's own, `fields` and `body` are those sent. `send` sends other ones to the same address, and
    returns the status and the body of the answer; None without one.
    """

    tenant_id: UUID
    session: str
    line: str
    call_id: UUID
    format: str
    cache: "CacheProfile"
    cached_tokens: int
    request: "Mapping[str, Json]" = field(repr=False)
    fields: Sequence[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(repr=False)
    send: "Callable[[Sequence[tuple[bytes, bytes]], bytes], Awaitable[tuple[int, bytes] | None]]" = field(repr=False)

    @property
    def key(self) -> tuple[UUID, str]:
        """The tenant and the name of its session."""
        return self.tenant_id, self.session


class ForwardedCalls:
    """Remembers requests through a gateway, for people who want to know why one was forwarded without a context.

    `on_accepted` gets each call with a context that its provider accepted, and how many seconds ago it was sent.
    """

    def __init__(self) -> None:
        self.since = datetime.now(UTC)
        self.on_accepted: Callable[[AcceptedCall, float], None] | None = None
        self._newest: OrderedDict[UUID, deque[ForwardedCall]] = OrderedDict()

    def note(self, tenant_id: UUID, call: ForwardedCall) -> None:
        """Remember a tenant's request; the oldest is forgotten, or the tenant without requests for the longest time."""
        self._newest.setdefault(tenant_id, deque(maxlen=CALLS_MAX)).append(call)
        self._newest.move_to_end(tenant_id)
        if len(self._newest) > TENANTS_MAX:
            self._newest.popitem(last=False)

    def newest(self, tenant_id: UUID) -> Sequence[ForwardedCall]:
        """Return a tenant's requests, newest first."""
        return list(reversed(self._newest.get(tenant_id, ())))
