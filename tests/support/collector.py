"""A trace collector on loopback for OTLP over HTTP that decodes with OpenTelemetry's own types."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.loopback import listening


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as received."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    failed: bool
    attributes: Mapping[str, Any]
    links: Sequence[tuple[str, str]]
    """The (trace id, span id) of each link."""
    resource: Mapping[str, Any]


@dataclass
class Collector:
    """The collector's URL, its spans, and all bytes received; with `refuses` it rejects every batch."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    refuses: bool = False
    asked: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, enough: Callable[[list[ReceivedSpan]], object]) -> list[ReceivedSpan]:
        """Return all spans once `enough` holds for them."""
        async with asyncio.timeout(120), self.changed:
            await self.changed.wait_for(lambda: enough(self.spans))
        return self.spans

    async def take(self, body: bytes) -> None:
        """Decode and keep an export request."""
        for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _values(batch.resource.attributes)
            for scope in batch.scope_spans:
                self.spans += [_seen(span, resource) for span in scope.spans]
        self.raw += body


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Serve a collector until the block ends."""
    state = Collector()
    app = FastAPI()

    @app.post("/v1/traces")
    async def traces(request: Request) -> Response:
        body = await request.body()
        async with state.changed:
            state.asked += 1
            if not state.refuses:
                await state.take(body)
            state.changed.notify_all()
        return Response(status_code=400 if state.refuses else 200, media_type="application/x-protobuf")

    async with listening(app) as state.url:
        yield state


def _seen(span: Span, resource: Mapping[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        failed=span.status.code == 2,
        attributes=_values(span.attributes),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
