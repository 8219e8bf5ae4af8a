"""A session's stream, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Final, Literal

import structlog
from fastapi import Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from pydantic import BaseModel, Field
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from app.core.errors import InvalidRequest
from app.http import fields
from app.http.auth import authenticate_bearer
from app.http.errors import Forbidden, Unauthorized
from app.http.fields import Sid
from app.http.middleware import EXCHANGE
from app.http.operation import Resource, Who, service
from app.resources.summaries.routes import CompactionRun
from app.wings.stream.service import KINDS, Message, Stream, Streams


class EpochChange(BaseModel):
    """A newly opened epoch: the data of a stream's `epoch` message."""

    session: fields.SessionName
    view: str = Field(description="Name of the view.")
    epoch: fields.EpochNumber
    current: bool = Field(
        description="Whether it is the view's current epoch; false for one opened by a context of an earlier seq."
    )
    cause: fields.EpochCause
    head: fields.EpochHead
    tokens_before: fields.EpochTokensBefore
    tokens_after: fields.EpochTokensAfter
    created_at: fields.CreatedAt


class CompactionTokens(BaseModel):
    """Effect of a compaction run on the `main` view's context, in tokens by the estimator."""

    before: int | None = Field(description="Size of the context when the run began; null before that.")
    after: int | None = Field(
        description="Estimated size of the context with the new summaries; null unless the run succeeded."
    )
    compacted: int | None = Field(description="`before` minus `after`, at least 0; null until the run has ended.")


class CompactionChange(BaseModel):
    """A step of a compaction run: the data of a stream's `compaction` message and of a webhook."""

    session: fields.SessionName
    state: Literal["scheduled", "started", "finished", "failed"] = Field(
        description="Step of the run: `scheduled` (also if postponed), `started`, `finished` (`run.state` shows "
        "whether there was anything to summarize) or `failed`."
    )
    run: CompactionRun = Field(description="State of the run after this step.")
    tokens: CompactionTokens = Field(description="Effect of the run on the `main` view's context.")
    aborted: bool = Field(description="Whether the run failed and contexts stay as they were.")
    will_retry: bool = Field(description="Whether the run was postponed because the summarizer was unavailable.")
    kept_from_seq: int | None = Field(
        description="Seq of the first event after those that the new summaries cover; null if there are none."
    )


router = Resource("stream", schemas=(EpochChange, CompactionChange))

SEND_SECONDS: Final = 60.0
"""The time after which a client that reads nothing is dropped; it can resume after the last message it received."""
RETRY_MILLISECONDS: Final = 1_000

_MODELS: Final[dict[str, type[BaseModel]]] = {"epoch": EpochChange, "compaction": CompactionChange}
_LINE_ENDS: Final = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
_DESCRIBED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Endless server-sent events. `event` is `appended` (`data` is an `EventOut`), `epoch` (an"
        " `EpochChange`) or `compaction` (a `CompactionChange`); `id` is the position to resume from, as"
        " `Last-Event-ID`. Each message is sent once: events in the order of their seqs, changes in their own order and"
        " after the events that preceded them. Comments keep the connection alive. The stream ends when the session is"
        " erased, the key is revoked, or the server stops.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "examples": {
                    "appended": {
                        "value": 'event: appended\ndata: {"seq":1,"type":"user.message","content":"Hello",…}\n'
                        "id: 1-0-61f0c3a2b4d50\n\n"
                    }
                },
            }
        },
    }
}


@router.operation(
    "GET",
    "/v1/sessions/{sid}/stream",
    scope="read",
    summary="Stream a session",
    problems=("conflict", "too-many-streams"),
    responses=_DESCRIBED,
    response_class=StreamingResponse,
)
async def stream_session(
    sid: Sid,
    request: Request,
    who: Who,
    streams: Annotated[Streams, Depends(service(Streams))],
    last_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            description="Id of the last message received, after which to resume; `after` is then ignored.",
        ),
    ] = None,
    after: Annotated[
        int,
        Query(
            ge=0,
            lt=2**63,
            description="Seq after which to begin: sends the events after it, and the changes made since it was "
            "appended.",
        ),
    ] = 0,
    types: Annotated[
        list[str] | None,
        Query(description=f"Kinds of messages to send, separated by commas: {', '.join(KINDS)}. Default: all."),
    ] = None,
) -> StreamingResponse:
    """Stream the events and changes of a session: first those after the given position, then each as it happens."""
    stream = await streams.open(
        who.tenant_id, sid, last_id=last_id, after=after, kinds=_kinds(types), allowed=partial(_allowed, request)
    )
    return EventStream(stream)


class EventStream(StreamingResponse):
    """A streaming response. Each message is produced only after the client has received the previous one."""

    media_type = "text/event-stream"

    def __init__(self, stream: Stream) -> None:
        super().__init__(_lines(stream), headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the stream ends, or the client disconnects or reads nothing for SEND_SECONDS."""

        async def timely(message: AsgiMessage) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        scope[EXCHANGE].release_slot()  # streams have their own limit
        try:
            with scope["state"]["services"].observers.stream():
                await super().__call__(scope, receive, timely)
        except TimeoutError:
            structlog.get_logger().warning("a stream client stopped reading", path=scope["path"])
        finally:
            self._stream.close()


async def _lines(stream: Stream) -> AsyncIterator[bytes]:
    yield format_sse_event(retry=RETRY_MILLISECONDS)
    async for message in stream.messages():
        if message is None:
            yield format_sse_event(comment="keep-alive")
        else:
            yield format_sse_event(event=message.kind, data_str=_data(message), id=message.id)


def _data(message: Message) -> str:
    """Return a message's data as one line of JSON, without characters that some clients take for line ends."""
    model = _MODELS.get(message.kind)
    data = message.data if model is None else model.model_validate_json(message.data).model_dump_json()
    return data.translate(_LINE_ENDS)


async def _allowed(request: Request) -> bool:
    """Return whether the key that opened a stream still works."""
    try:
        await authenticate_bearer(request, "read")
    except (Unauthorized, Forbidden):
        return False
    return True


def _kinds(types: list[str] | None) -> frozenset[str]:
    """Parse the kinds of messages to send; all by default. Raises InvalidRequest."""
    if types is None:
        return frozenset(KINDS)
    kinds = frozenset(kind.strip() for given in types for kind in given.split(","))
    if not kinds <= frozenset(KINDS):
        raise InvalidRequest(f"types must be some of {', '.join(KINDS)}", field="types")
    return kinds
