"""Traces by OpenTelemetry's SDK, sent over OTLP/HTTP; imported only if its variables name an endpoint.

OpenTelemetry's own instrumentation of ASGI and asyncpg is not used: it records queries and statements.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache
from threading import Thread
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.tracing import SpanKind, SpanValue, Tracer, TraceSpan, using
from app.version import VERSION

FLUSH_SECONDS: Final = 2.0
"""Seconds for which an ending process waits for its last spans. Containers are given more time to stop."""
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_STORE: Final = "app.store."
_ENGINE: Final = "app.store.engine"
_OPERATION: Final = re.compile(r"\s*(\w+)")
_WRITING: Final = re.compile(r"\b(INSERT INTO|UPDATE(?= \w+(?: \w+)? SET)|DELETE FROM)\b")
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class _Exporter(OTLPSpanExporter):
    """An exporter that logs once when spans cannot be sent, and once when they can again. It runs in the thread of the
    batches, so that no request waits for it."""

    failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans."""
        try:
            result = super().export(spans)
        except Exception:  # no answer of a collector may end the thread
            result = SpanExportResult.FAILURE
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self.failing:
            structlog.get_logger().warning("traces cannot be sent; they are dropped until they can")
        elif self.failing and not failing:
            structlog.get_logger().warning("traces are sent again")
        self.failing = failing
        return result


class RecordedSpan(TraceSpan):
    """A span of OpenTelemetry, for its block to fill in."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._failed = False
        self.is_recording = span.is_recording()
        self.trace_id = f"{span.get_span_context().trace_id:032x}"

    def set(self, **values: SpanValue) -> None:
        """See TraceSpan."""
        self._span.set_attributes(_attributes(values))

    def rename(self, name: str) -> None:
        """See TraceSpan."""
        self._span.update_name(name)

    def link(self, headers: Mapping[str, str]) -> None:
        """See TraceSpan."""
        named = trace.get_current_span(_PROPAGATOR.extract(headers, Context())).get_span_context()
        if named.is_valid:
            self._span.add_link(named)

    def fail(self, kind: str) -> None:
        """See TraceSpan."""
        if not self._failed:
            self._failed = True
            self._span.set_attribute("error.type", kind)
            self._span.set_status(trace.StatusCode.ERROR)


class ExportingTracer(Tracer):
    """A tracer that sends its spans. Its provider is not registered: libraries that make spans of their own find none,
    and so cannot send content in them."""

    def __init__(self) -> None:
        """Set up the exporter. Endpoint, sampler, limits and service name come from OpenTelemetry's variables."""
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # it logs every failure
        asked = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), _PROTOCOL)
        if asked != _PROTOCOL:
            structlog.get_logger().warning("traces are sent as http/protobuf, and nothing else", asked=asked)
        ours = Resource.create({"service.name": "palimpsest", "service.version": VERSION})
        resource = ours.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter()))
        self._tracer = self._provider.get_tracer("palimpsest", VERSION)

    def close(self) -> None:
        """Send the remaining spans, for at most FLUSH_SECONDS."""
        closing = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(FLUSH_SECONDS)
        if closing.is_alive():
            structlog.get_logger().warning("the last traces were not sent in time")

    @contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind = "internal",
        parent: Sequence[tuple[bytes, bytes]] | None = None,
        **values: SpanValue,
    ) -> Iterator[TraceSpan]:
        """See Tracer."""
        fields = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in parent or ()}
        with self._tracer.start_as_current_span(
            name,
            None if parent is None else _PROPAGATOR.extract(fields),
            trace.SpanKind[kind.upper()],
            _attributes(values),
            record_exception=False,
            set_status_on_exception=False,
        ) as inner:
            span = RecordedSpan(inner)
            try:
                yield span
            except BaseException as error:
                span.fail(type(error).__qualname__)
                raise

    def statement_span(self, sql: str) -> AbstractContextManager[TraceSpan]:
        """See Tracer."""
        if not trace.get_current_span().is_recording():
            return super().statement_span(sql)
        operation, asker = _operation(sql), _calling_function()
        return self.span(
            f"{operation} {asker.removeprefix(_STORE)}",
            "client",
            db__system__name="postgresql",
            db__operation__name=operation,
            code__function__name=asker,
        )

    def headers(self) -> dict[str, str]:
        """See Tracer."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier

    def link_headers(self) -> dict[str, str]:
        """See Tracer."""
        return self.headers() if trace.get_current_span().is_recording() else {}


@contextmanager
def exported() -> Iterator[None]:
    """Send the spans of the block; the last ones at its end, in bounded time. For one process only: the sending thread
    does not survive a fork."""
    with closing(ExportingTracer()) as tracer, using(tracer):
        yield


def _attributes(values: Mapping[str, SpanValue]) -> dict[str, str | int | float | bool]:
    return {name.replace("__", "."): value for name, value in values.items() if value is not None}


@lru_cache(maxsize=1_000)
def _operation(sql: str) -> str:
    """Return a statement's operation; if it begins with WITH, the first one that writes."""
    found = _OPERATION.match(sql)
    first = found[1].upper() if found else "?"
    if first != "WITH":
        return first
    writing = _WRITING.search(sql)
    return writing[1].split()[0] if writing else "SELECT"


def _calling_function() -> str:
    """Return the function that runs a statement: the nearest caller outside this module and the engine.

    If that is a module's private helper, the function of the module that was called from elsewhere.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"] in (__name__, _ENGINE):
        frame = frame.f_back
    while (
        frame.f_code.co_name.startswith("_")
        and frame.f_back is not None
        and frame.f_back.f_globals["__name__"] == frame.f_globals["__name__"]
    ):
        frame = frame.f_back
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
