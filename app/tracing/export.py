"""OpenTelemetry's SDK, and the export of spans over OTLP/HTTP; imported only if traces are wanted."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.version import VERSION

FLUSH_SECONDS: Final = 2.0
"""Seconds for which an ending process waits for its last spans. Containers are given more time to stop."""
_KINDS: Final = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "consumer": trace.SpanKind.CONSUMER,
}
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"


class _LoggingExporter(SpanExporter):
    """An exporter that logs once when spans cannot be sent, and once when they can again. It runs in the thread of the
    batches, so that no request waits for it."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        try:
            result = self._inner.export(spans)
        except Exception:  # no answer of a collector may end the thread
            result = SpanExportResult.FAILURE
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            structlog.get_logger().warning("traces cannot be sent; they are dropped until they can")
        elif self._failing and not failing:
            structlog.get_logger().warning("traces are sent again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See SpanExporter."""
        return self._inner.force_flush(timeout_millis)


class Exporting:
    """The spans of a process. The provider is not registered: libraries that make spans of their own find none, and so
    cannot send content in them."""

    def __init__(self) -> None:
        """Set up the exporter. Endpoint, sampler, limits and service name come from OpenTelemetry's variables."""
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # it logs every failure
        asked = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), _PROTOCOL)
        if asked != _PROTOCOL:
            structlog.get_logger().warning("traces are sent as http/protobuf, and nothing else", asked=asked)
        ours = Resource.create({"service.name": "palimpsest", "service.version": VERSION})
        resource = ours.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_LoggingExporter(OTLPSpanExporter())))
        self._tracer = self._provider.get_tracer("palimpsest", VERSION)
        self._propagator = TraceContextTextMapPropagator()

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
        kind: str,
        attributes: Mapping[str, str | int | float | bool],
        fields: Sequence[tuple[bytes, bytes]] | None,
    ) -> Iterator[trace.Span]:
        """Open a span, in the current one or in the one that header fields name. It records no exceptions."""
        context = None
        if fields is not None:
            given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in fields}
            context = self._propagator.extract(given)
        with self._tracer.start_as_current_span(
            name,
            context,
            _KINDS[kind],
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def link(self, span: trace.Span, fields: Mapping[str, str]) -> None:
        """Link a span to the one that header fields name, if they name one."""
        named = trace.get_current_span(self._propagator.extract(fields, Context())).get_span_context()
        if named.is_valid:
            span.add_link(named)

    def fail(self, span: trace.Span, kind: str) -> None:
        """Mark a span as failed."""
        span.set_attribute("error.type", kind)
        span.set_status(trace.StatusCode.ERROR)

    def recording(self) -> bool:
        """Return whether the current span will be sent."""
        return trace.get_current_span().is_recording()

    def outgoing(self) -> dict[str, str]:
        """Return the header fields of the current span."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier
