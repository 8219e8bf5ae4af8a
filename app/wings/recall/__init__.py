"""Recall of originals, over HTTP and over the Model Context Protocol."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from app.runtime.wing import MakeFollowUp, MakeJobs, Wing, ciphers

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from app.http.operation import Resource
    from app.runtime.wiring import Services


def _services(_: Any, kernel: "Services") -> Iterable[object]:
    from app.wings.recall.service import Recall

    yield Recall(kernel.database, kernel.counting, kernel.policies)


def _routes(_: Any) -> "Sequence[Resource | BaseRoute]":
    from app.wings.recall.routes import MCP_ROUTES, router

    return [router, *MCP_ROUTES]


def _after_compaction(_: Any) -> Sequence[MakeFollowUp]:
    from app.wings.recall.service import Indexing

    return [lambda database: Indexing(database).update]  # the agent may soon search what is summarized


def _jobs(settings: Any) -> Sequence[MakeJobs]:
    from app.wings.recall.jobs import IndexJobs

    return [lambda database: IndexJobs(database, ciphers(settings, database))]


WING = Wing(
    services=_services,
    routes=_routes,
    jobs=_jobs,
    after_compaction=_after_compaction,
    tables=("search", "search_heads"),
)
