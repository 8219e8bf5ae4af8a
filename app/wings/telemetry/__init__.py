"""Metrics for Prometheus, and traces by OpenTelemetry."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from app.runtime.wing import Observers, Wing

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from app.runtime.wiring import Services

SHARED_METRICS: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable for the folder in which processes share their metrics; `prometheus_client` reads it when imported."""
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def _traces() -> bool:
    """Return whether OpenTelemetry's variables name an endpoint for traces, and do not disable them."""
    off = (os.environ.get("OTEL_SDK_DISABLED", "").lower(), os.environ.get("OTEL_TRACES_EXPORTER", "").lower())
    return any(map(os.environ.get, _ENDPOINTS)) and off[0] != "true" and off[1] != "none"


@contextmanager
def _start(settings: Any) -> Iterator[None]:
    """Let several API processes share their metrics in a temporary folder."""
    if _traces():
        import app.wings.telemetry.tracing  # noqa: F401 - imported for the forked processes
    if settings.processes == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="palimpsest-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[SHARED_METRICS] = folder
        yield


def _process(_: Any) -> AbstractContextManager[None]:
    if not _traces():
        return nullcontext()
    from app.wings.telemetry.tracing import exported

    return exported()


def _routes(_: Any) -> "Sequence[BaseRoute]":
    from app.wings.telemetry.routes import router

    return router.routes


@asynccontextmanager
async def _lifespan(_: Any, services: "Services", __: asyncio.Event) -> AsyncIterator[None]:
    from app.wings.telemetry.metrics import measure_loop_lag

    pulse = asyncio.create_task(measure_loop_lag(services.database))
    try:
        yield
    finally:
        pulse.cancel()


def _observers() -> Observers:
    from app.wings.telemetry.metrics import OBSERVERS

    return OBSERVERS


WING = Wing(routes=_routes, lifespan=_lifespan, start=_start, process=_process, observers=_observers)
