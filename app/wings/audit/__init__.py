"""Explanation and comparison of recorded calls, and previews of the next."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.http.operation import Resource
    from app.runtime.wiring import Services


def _services(settings: Any, kernel: "Services") -> Iterable[object]:
    from app.core.tokens.models import parse_table
    from app.wings.audit.previews import Preview
    from app.wings.audit.search import CallSearch
    from app.wings.audit.service import Audit, Moments

    yield CallSearch(kernel.database)
    moments = Moments(kernel.database, kernel.policies, kernel.counting, parse_table(settings.cache_table))
    yield (audit := Audit(kernel.database, kernel.policies, kernel.recordings, moments))
    yield Preview(kernel.database, kernel.assembly, audit)


def _routes(_: Any) -> "Sequence[Resource]":
    from app.wings.audit import previews, routes

    return [previews.router, routes.router]


WING = Wing(services=_services, routes=_routes)
