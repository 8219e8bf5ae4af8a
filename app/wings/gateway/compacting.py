"""Items for requested compactions, the responses with them alone, and the errors of calls that hold one."""

import time
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

from starlette.responses import Response

from app.core.assembly.assemble import Assembled
from app.core.assembly.inputs import ContextInputs
from app.core.errors import InvalidRequest, StoreUnavailable
from app.core.log.events import PREFIX, Json, canonical_json
from app.core.memory.digest.digest import digest_of
from app.core.memory.extractive.summary import write_summary
from app.core.wire.bodies import Body
from app.core.wire.calls import CallConversation, NotBudgeted
from app.core.wire.compacted import (
    CompactedPlace,
    anthropic_block,
    compaction_object,
    paused_message,
    paused_stream,
    responses_item,
    triggered_response,
    triggered_stream,
)
from app.core.wire.providers import Endpoint
from app.core.wire.replies import objects

SUMMARY_TOKENS: Final = 2_000
"""Size of the summary in a block."""
DRAWING: Final = "image_generation"
"""The type of the provider's tool that generates images."""
EVENTS_MAX: Final = 1_000
"""Events in such a summary, besides the first one; reading more would delay the call."""
NOT_SENT: Final = "the request holds a compaction item of this gateway, so it cannot be forwarded unchanged: {}"


def item_response(endpoint: Endpoint, body: Body, sealed: str) -> Response:
    """Return an item as the response that the client expects."""
    number, now = uuid4().hex, int(time.time())
    if endpoint.compacts:
        return Response(canonical_json(compaction_object(number, now, sealed)), media_type="application/json")
    response = triggered_response(number, now, str(body.value.get("model") or ""), sealed)
    return _response(body, response, triggered_stream)


def paused_response(conversation: CallConversation, item: Mapping[str, Json]) -> Response:
    """Return an item as the response to a call that pauses after its compaction."""
    return _response(conversation.body, paused_message(uuid4().hex, conversation.model, item), paused_stream)


def _response(body: Body, value: Mapping[str, Json], stream: Callable[[Mapping[str, Json]], bytes]) -> Response:
    if body.value.get("stream") is True:
        return Response(stream(value), media_type="text/event-stream")
    return Response(canonical_json(value), media_type="application/json")


def exceeds_threshold(assembled: Assembled, conversation: CallConversation) -> bool:
    """Return whether a call's list, from its last item on, exceeds the threshold of a compaction that it requests.

    A call that continues a reply has no list to make shorter. The events of generated images are too large to be read,
    so no item can be inserted before them.
    """
    requested, inputs = conversation.compaction, assembled.inputs
    draws = any(tool.get("type") == DRAWING for tool in objects(conversation.tools))
    if requested is None or conversation.previous is not None or draws:
        return False
    after = 0 if conversation.place is None else conversation.place.seq
    shown = [one for one in inputs.events if one.seq > after and one.rendered and one.type not in PREFIX]
    tokens = sum(one.tokens for one in (*assembled.rendered.plan.context.prefix, *shown))
    tokens += inputs.loaded.unread.tokens if inputs.loaded.unread.to_seq > after else 0
    return inputs.budget.shown(tokens) > (requested.tokens or inputs.budget.window)


def make_item(form: str, sealed: str, inputs: ContextInputs) -> dict[str, Json]:
    """Return an item for a call's list; a block of the Messages API has a summary that is written without a model."""
    if form != "anthropic":
        return responses_item(uuid4().hex, sealed)
    events = [one for one in inputs.events if one.rendered and one.type not in PREFIX]
    events = [*events[:1], *events[1:][-EVENTS_MAX:]]
    previous = "\n\n".join(one.text for one in inputs.loaded.folded if one.text)
    summary = write_summary(events, (), previous, digest_of(events), SUMMARY_TOKENS, inputs.counter)
    return anthropic_block(summary, sealed)


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
