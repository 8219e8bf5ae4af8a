"""Ledgers: the use of the provider's cache, and its price."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.http.operation import Resource
    from app.runtime.settings import Settings
    from app.runtime.wiring import Services


def _services(settings: "Settings", kernel: "Services") -> Sequence[object]:
    """Make the ledger, and let it measure the cache reads of reported calls."""
    from app.core.tokens.models import parse_table
    from app.wings.ledger.service import Ledger

    caches = parse_table(settings.cache_table)
    ledger = Ledger(kernel.database, kernel.policies, caches)
    kernel.feedback.cache_reads = ledger.cache_reads
    return [ledger]


def _routes(_: object) -> "Sequence[Resource]":
    from app.wings.ledger.routes import router

    return [router]


WING = Wing(services=_services, routes=_routes)
