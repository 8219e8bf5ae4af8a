"""Comparison of recorded calls with each other, and with previews of the next."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.http.operation import Resource
    from app.runtime.wiring import Services


def _services(_: Any, kernel: "Services") -> Iterable[object]:
    from app.wings.compare.routes import Preview
    from app.wings.compare.service import Comparisons

    yield (comparisons := Comparisons(kernel.database, kernel.policies, kernel.recordings))
    yield Preview(kernel.database, kernel.assembly, comparisons)


def _routes(_: Any) -> "Sequence[Resource]":
    from app.wings.compare import routes

    return [routes.previews, routes.router]


WING = Wing(services=_services, routes=_routes)
