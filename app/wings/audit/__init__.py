"""Explanation of recorded calls: their records, blocks and reasons, a search for them, and the evictions to come."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.http.operation import Resource
    from app.runtime.wiring import Services


def _services(settings: Any, kernel: "Services") -> Iterable[object]:
    from app.core.tokens.models import parse_table
    from app.wings.audit.moments import Moments
    from app.wings.audit.search import CallSearch
    from app.wings.audit.service import Audit

    yield CallSearch(kernel.database)
    moments = Moments(kernel.database, kernel.policies, kernel.counting, parse_table(settings.cache_table))
    yield Audit(kernel.database, kernel.policies, kernel.recordings, kernel.assembly, moments)


def _routes(_: Any) -> "Sequence[Resource]":
    from app.wings.audit import routes

    return [routes.previews, routes.router]


WING = Wing(services=_services, routes=_routes)
