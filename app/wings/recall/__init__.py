"""Recall of originals, over HTTP and over the Model Context Protocol."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from app.runtime.wing import MakeFollowUp, Wing

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

    return [lambda database: Indexing(database).index_to]  # the agent may soon search what is summarized


WING = Wing(services=_services, routes=_routes, after_compaction=_after_compaction, tables=("search", "search_heads"))
