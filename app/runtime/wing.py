"""Wings: parts of the server that can be deleted with their folder.

Each package in `app/wings` has a value `WING`: the parts that it adds. Nothing outside imports a wing, and no wing
imports another.
"""

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic import BaseModel

if TYPE_CHECKING:
    import asyncio

    import typer
    from starlette.routing import BaseRoute

    from app.core.assembly.inputs import ContextRequest
    from app.core.errors import ContextError
    from app.http.middleware import Exchange
    from app.http.operation import Resource
    from app.resources.contexts.service import ContextAnswer
    from app.resources.feedback.service import Verdict
    from app.runtime.wiring import Services
    from app.store.driver import Driver, FindPlacement, Placement
    from app.store.engine import Database
    from app.store.texts import ContentCiphers
    from app.worker.job_context import FollowUp, JobGroup


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
    """Callbacks for metrics. By default they do nothing.

    `request`: makes a context for the time of a request and its response. `context`: the outcome of a context request.
    `report`: a report of a call's outcome. `pool_wait`: the seconds that a connection took to get. `stream`: makes a
    context for the time of a stream. `gateway_call`: the provider and mode of a request through the gateway.
    `replica_check`: the replica's state and the age of its data, if known. `replica_read`: what served a read that a
    replica may serve, and why.
    """

    request: "Callable[[Exchange], AbstractContextManager[object]]" = _no_context
    context: "Callable[[ContextRequest, ContextAnswer | ContextError], None]" = _nothing
    report: "Callable[[Verdict], None]" = _nothing
    pool_wait: Callable[[float], None] = _nothing
    stream: Callable[[], AbstractContextManager[object]] = _no_context
    gateway_call: Callable[[str, str], None] = _nothing
    replica_check: Callable[[str, float | None], None] = _nothing
    replica_read: Callable[[str], None] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """The parts that a wing adds to the server. Functions get the server's settings, with the wing's own among them.

    Everything that takes long to import is imported inside these functions, because every process imports the packages
    of all wings. `settings`: fields that become settings of the server. `services`: services that routes request by
    their class; those with a method `aclose` are closed at the end. `routes`: resources and routes of the API.
    `lifespan`: a context for the time in which the application serves; it gets the services and the event that is set
    when the server begins to stop. `jobs`: jobs of a worker. `after_compaction`: work that follows each compaction.
    `commands`: adds commands to the command line. `ciphers`: the ciphers of tenants' contents; at most one wing has
    them. `foreign_paths`: prefixes of paths for clients of other APIs, whose problems have a member `error` for them.
    `start`: a context for a command that runs the server, entered before its modules are imported and its processes
    forked. `process`: a context for each process that serves or works. `observers`: callbacks for metrics; at most one
    wing has them. `find_placement`: returns the placement of a database whose tables are not all on one server, None
    for another database.
    """

    settings: type[BaseModel] | None = None
    services: "Callable[[Any, Services], Iterable[object]]" = _nothing
    routes: "Callable[[Any], Iterable[Resource | BaseRoute]]" = _nothing
    lifespan: "Callable[[Any, Services, asyncio.Event], AbstractAsyncContextManager[None]]" = _no_context
    jobs: "Callable[[Any], Sequence[MakeJobs]]" = _nothing
    after_compaction: "Callable[[Any], Sequence[MakeFollowUp]]" = _nothing
    commands: "Callable[[typer.Typer], object]" = _nothing
    ciphers: "Callable[[Any, Database], ContentCiphers] | None" = None
    foreign_paths: tuple[str, ...] = ()
    start: Callable[[Any], AbstractContextManager[None]] = _no_context
    process: Callable[[Any], AbstractContextManager[None]] = _no_context
    observers: Callable[[], Observers] | None = None
    find_placement: "FindPlacement | None" = None


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


async def find_placement(driver: "Driver", database: "Database") -> "Placement | None":
    """Return the placement that a wing finds for a database, given a connection to it."""
    for wing in installed():
        if wing.find_placement is not None and (found := await wing.find_placement(driver, database)) is not None:
            return found
    return None
