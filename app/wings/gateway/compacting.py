"""Answers to requests for a compaction, and the errors of calls that hold an item of ours."""

import time
from typing import Final
from uuid import uuid4

from starlette.responses import Response

from app.core.errors import InvalidRequest, StoreUnavailable
from app.core.log.events import canonical_json
from app.core.wire.bodies import Body
from app.core.wire.calls import NotBudgeted
from app.core.wire.compacted import CompactedPlace, compaction_object, triggered_response, triggered_stream
from app.core.wire.providers import Endpoint

NOT_SENT: Final = "the request holds a compaction item of this gateway, so it cannot be forwarded unchanged: {}"


def item_response(endpoint: Endpoint, body: Body, sealed: str) -> Response:
    """Return an item as the response that the client expects."""
    number, now = uuid4().hex, int(time.time())
    if endpoint.compacts:
        return Response(canonical_json(compaction_object(number, now, sealed)), media_type="application/json")
    response = triggered_response(number, now, str(body.value.get("model") or ""), sealed)
    if body.value.get("stream") is True:
        return Response(triggered_stream(response), media_type="text/event-stream")
    return Response(canonical_json(response), media_type="application/json")


def check_sendable(place: CompactedPlace | None, error: Exception) -> None:
    """Raise the error of a call that holds an item, which no provider can read, and for which there is no context.

    Raises InvalidRequest, StoreUnavailable or the error itself; nothing without an item.
    """
    if place is None:
        return
    if isinstance(error, NotBudgeted):
        raise InvalidRequest(NOT_SENT.format(error)) from None
    if isinstance(error, TimeoutError):
        raise StoreUnavailable(NOT_SENT.format("its context took too long")) from None
    raise error
