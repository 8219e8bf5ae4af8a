"""Traces by OpenTelemetry, enabled by its own variables. If they name no endpoint, none of it is imported.

A span records the operation, its caller, its duration and its result: never the content of a message, a parameter or a
header field. An exception is recorded by its kind only, since its text may quote any of these.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from opentelemetry import trace

    from app.tracing.export import Exporting

Value: TypeAlias = str | int | float | bool | None
SpanKind: TypeAlias = Literal["internal", "server", "client", "consumer"]

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
CONTEXT_FIELDS: Final = (b"traceparent", b"tracestate")
"""The header fields of a W3C trace context."""
_STORE: Final = "app.store."
_ENGINE: Final = "app.store.engine"
_OPERATION: Final = re.compile(r"\s*(\w+)")
_WRITING: Final = re.compile(r"\b(INSERT INTO|UPDATE(?= \w+(?: \w+)? SET)|DELETE FROM)\b")

_exporting: "Exporting | None" = None


def is_enabled(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether OpenTelemetry's variables name an endpoint for traces, and do not disable them."""
    off = (variables.get("OTEL_SDK_DISABLED", "").lower(), variables.get("OTEL_TRACES_EXPORTER", "").lower())
    return any(variables.get(name) for name in _ENDPOINTS) and off[0] != "true" and off[1] != "none"


def load() -> None:
    """Import the modules of tracing, if it is wanted: before processes are forked, so that they share their memory."""
    if is_enabled():
        import app.tracing.export  # noqa: F401 - imported for the forked processes


@contextmanager
def exported() -> Iterator[None]:
    """Record spans while the block lasts, if they are wanted, and send them; the last ones at its end, in bounded time.
    For one process only: the sending thread does not survive a fork."""
    global _exporting
    if not is_enabled():
        yield
        return
    from app.tracing.export import Exporting

    _exporting = Exporting()
    try:
        yield
    finally:
        ending, _exporting = _exporting, None
        ending.close()


class OpenSpan:
    """A span for its block to fill in. Its methods do nothing if there is no span."""

    def __init__(self, span: "trace.Span | None" = None) -> None:
        self._span = span
        self._failed = False

    def set(self, **values: Value) -> None:
        """Add attributes, named with two underscores for each dot. None: no attribute."""
        if self._span is not None:
            self._span.set_attributes(_attributes(values))

    def rename(self, name: str) -> None:
        """Rename the span."""
        if self._span is not None:
            self._span.update_name(name)

    def link(self, fields: Mapping[str, str]) -> None:
        """Link the span to the one that header fields name, if they name one."""
        if self._span is not None and _exporting is not None:
            _exporting.link(self._span, fields)

    @property
    def is_recording(self) -> bool:
        """Whether the span will be sent."""
        return self._span is not None and self._span.is_recording()

    def fail(self, kind: str) -> None:
        """Mark the span as failed, with the kind of failure; only the first call counts."""
        if self._span is not None and _exporting is not None and not self._failed:
            self._failed = True
            _exporting.fail(self._span, kind)

    @property
    def trace_id(self) -> str | None:
        """The id of the trace, as other tools write it; None without a span."""
        return None if self._span is None else f"{self._span.get_span_context().trace_id:032x}"


class _NoSpan(AbstractContextManager[OpenSpan]):
    def __enter__(self) -> OpenSpan:
        return _NOTHING

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING: Final = OpenSpan()
_NO_SPAN: Final = _NoSpan()


def span(name: str, kind: SpanKind = "internal", **values: Value) -> AbstractContextManager[OpenSpan]:
    """Open a span in the current one, around a block. An exception that leaves the block marks it as failed."""
    return _NO_SPAN if _exporting is None else _open_span(_exporting, name, kind, values, None)


def request_span(
    method: str, fields: Sequence[tuple[bytes, bytes]], **values: Value
) -> AbstractContextManager[OpenSpan]:
    """Open a span around a request, in the one that its header fields name."""
    return _NO_SPAN if _exporting is None else _open_span(_exporting, method, "server", values, fields)


def statement_span(sql: str) -> AbstractContextManager[OpenSpan]:
    """Open a span around a statement, named by the function of the store that runs it. Outside requests and jobs there
    is none: schedules query the database all day."""
    if _exporting is None or not _exporting.recording():
        return _NO_SPAN
    operation, asker = _operation(sql), _calling_function()
    values = {"db__system__name": "postgresql", "db__operation__name": operation, "code__function__name": asker}
    return _open_span(_exporting, f"{operation} {asker.removeprefix(_STORE)}", "client", values, None)


def link_headers() -> dict[str, str]:
    """Return header fields with which later work can be linked to the current span; empty unless it will be sent."""
    return {} if _exporting is None or not _exporting.recording() else _exporting.outgoing()


def trace_headers() -> dict[str, str]:
    """Return the header fields that pass the trace on with a request; empty without a trace."""
    return {} if _exporting is None else _exporting.outgoing()


@contextmanager
def _open_span(
    exporting: "Exporting",
    name: str,
    kind: SpanKind,
    values: Mapping[str, Value],
    fields: Sequence[tuple[bytes, bytes]] | None,
) -> Iterator[OpenSpan]:
    with exporting.span(name, kind, _attributes(values), fields) as inner:
        made = OpenSpan(inner)
        try:
            yield made
        except BaseException as error:
            made.fail(type(error).__qualname__)
            raise


def _attributes(values: Mapping[str, Value]) -> dict[str, str | int | float | bool]:
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
    """Return the function that runs a statement: the nearest caller outside this package and the engine.

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
