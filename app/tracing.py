"""Spans of traces. None is recorded unless a tracer is in use, which a wing may provide.

A span records the operation, its caller, its duration and its result: never the content of a message, a parameter or a
header field. An exception is recorded by its kind only, since its text may quote any of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final, Literal, TypeAlias

SpanValue: TypeAlias = str | int | float | bool | None
SpanKind: TypeAlias = Literal["internal", "server", "client", "consumer"]

CONTEXT_FIELDS: Final = (b"traceparent", b"tracestate")
"""The header fields of a W3C trace context."""


class TraceSpan:
    """A span for its block to fill in. An instance of this class itself is not recorded."""

    is_recording = False
    """Whether the span will be sent."""
    trace_id: str | None = None
    """The id of the trace, as other tools write it; None without one."""

    def set(self, **values: SpanValue) -> None:
        """Add attributes, named with two underscores for each dot. None: no attribute."""

    def rename(self, name: str) -> None:
        """Rename the span."""

    def link(self, headers: Mapping[str, str]) -> None:
        """Link the span to the one that header fields name, if they name one."""

    def fail(self, kind: str) -> None:
        """Mark the span as failed, with the kind of failure; only the first call counts."""


_NO_SPAN: Final = nullcontext(TraceSpan())


class Tracer:
    """Opens spans. An instance of this class itself opens none."""

    def span(
        self,
        name: str,
        kind: SpanKind = "internal",
        parent: Sequence[tuple[bytes, bytes]] | None = None,
        **values: SpanValue,
    ) -> AbstractContextManager[TraceSpan]:
        """Open a span around a block, in the current one or in the one that the header fields `parent` name.

        An exception that leaves the block marks the span as failed.
        """
        return _NO_SPAN

    def statement_span(self, sql: str) -> AbstractContextManager[TraceSpan]:
        """Open a span around a statement, named by the function of the store that runs it. Outside requests and jobs
        there is none: schedules query the database all day."""
        return _NO_SPAN

    def headers(self) -> dict[str, str]:
        """Return the header fields that pass the trace on with a request; empty without a trace."""
        return {}

    def link_headers(self) -> dict[str, str]:
        """Return header fields with which later work can be linked to the current span; empty if it is not sent."""
        return {}


tracer: Final = ContextVar("tracer", default=Tracer())  # noqa: B039 - it has no state
"""The tracer in use."""


@contextmanager
def using(chosen: Tracer) -> Iterator[None]:
    """Use a tracer for the block, and for the tasks and threads that are started in it."""
    token = tracer.set(chosen)
    try:
        yield
    finally:
        tracer.reset(token)
