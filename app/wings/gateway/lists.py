"""Calls' lists: completed by the log, their contexts, and the compaction items that are put into them."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID, uuid4

from starlette.responses import Response

from app.core.assembly.assemble import Assembled
from app.core.assembly.inputs import ContextInputs, ContextRequest
from app.core.errors import CannotFit, InvalidPolicy, InvalidRequest, StoreUnavailable
from app.core.log.events import PREFIX, Json, canonical_json
from app.core.memory.digest import digest_of
from app.core.memory.extractive import write_summary
from app.core.wire import compacted
from app.core.wire.bodies import Body
from app.core.wire.calls import AT_PROVIDER, NOT_IN_LOG, CallConversation, NotBudgeted, holds_results
from app.core.wire.providers import Endpoint
from app.core.wire.replies import objects
from app.resources.contexts.service import ContextAnswer
from app.resources.reconcile.continuation import continue_item, continue_reply
from app.resources.reconcile.messages import ClientList, ClientMessages
from app.store import lines, sessions
from app.store.ids import SessionRef, session_key

if TYPE_CHECKING:
    from app.runtime.wiring import Services


Made = TypeVar("Made")
NO_LIMIT: Final = 2**31
"""A limit that leaves every window as it is, but for one that an earlier call has limited."""


async def make_context(
    kernel: "Services", tenant_id: UUID, session: str, given: ClientMessages, request: ContextRequest
) -> ContextAnswer:
    """Return the next context of the line that a list continues. Raises what `Reconcile` raises."""
    return await _within_limit(partial(kernel.reconcile.context_only, tenant_id, session, given), request)


async def _within_limit(make: Callable[[ContextRequest], Awaitable[Made]], request: ContextRequest) -> Made:
    """Make a context; disregard the threshold of a requested compaction if none fits it, as providers do."""
    try:
        return await make(request)
    except (CannotFit, InvalidPolicy):
        if request.window_max in (None, NO_LIMIT):
            raise
        return await make(replace(request, window_max=NO_LIMIT))


async def read_list(
    kernel: "Services", tenant_id: UUID, session: str, conversation: CallConversation
) -> ClientMessages:
    """Read a call's list, completed by the log if it holds only the messages after a reply or a compaction item.

    Raises NotBudgeted, or what reading the list or `continue_item` raises.
    """
    listed = _client_list(conversation)
    if conversation.place is not None:
        return await continue_item(kernel.database, tenant_id, conversation.place, listed)
    if conversation.previous is None:
        return await kernel.reconcile.read(tenant_id, session, listed)
    found = await continue_reply(kernel.database, tenant_id, session, conversation.previous, listed)
    if found is None:
        raise NotBudgeted(AT_PROVIDER)
    return found


async def preview(
    kernel: "Services", tenant_id: UUID, session: str, conversation: CallConversation, request: ContextRequest
) -> tuple[ContextAnswer, int]:
    """Return a context to replace the first messages of a list, and their number, without recording it.

    They are the messages in the log, up to the end of a round. Raises NotBudgeted if there are none, or a context's
    errors.
    """
    given = await read_list(kernel, tenant_id, session, conversation)
    key = session_key(tenant_id, session)
    async with kernel.database.transaction() as tx:
        found = await lines.find_longest_chain(tx, key, [link.hash for link in given.links])
        count = _whole_messages(given, conversation.messages, found[0].number if found else 0)
        hashes = [link.hash for link in given.links if link.place < 0 or given.indices[link.place] < count]
        found = await lines.find_longest_chain(tx, key, hashes)
        row = await sessions.find(tx, SessionRef(found[0].line, tenant_id)) if found else None
    if row is None or not count:
        raise NotBudgeted(NOT_IN_LOG)
    plan = partial(kernel.assembly.plan, tenant_id, row.external_id)
    assembled = await _within_limit(plan, replace(request, at=found[0].seq))
    return ContextAnswer(row.external_id, assembled, "none"), count


def _whole_messages(given: ClientMessages, messages: Sequence[Json], known: int) -> int:
    """Count the messages of the first `known` links, without a call whose results follow them."""
    rest = given.links[known:]
    count = len(messages) if not rest else given.indices[rest[0].place]
    while 0 < count < len(messages) and holds_results(messages[count]):
        count -= 1
    return count


def _client_list(conversation: CallConversation) -> ClientList:
    """Return a call's list. An absent field is empty, except in an Anthropic thread that continues from a reply."""
    continues = conversation.previous is not None and conversation.place is None
    complete = not continues or conversation.format != "anthropic"
    tools: Json = [] if complete and conversation.tools is None else conversation.tools
    return ClientList(conversation.format, conversation.messages, conversation.system, tools, all_prompts=complete)


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
        return Response(canonical_json(compacted.compaction_object(number, now, sealed)), media_type="application/json")
    response = compacted.triggered_response(number, now, str(body.value.get("model") or ""), sealed)
    return _response(body, response, compacted.triggered_stream)


def paused_response(conversation: CallConversation, item: Mapping[str, Json]) -> Response:
    """Return an item as the response to a call that pauses after its compaction."""
    return _response(
        conversation.body, compacted.paused_message(uuid4().hex, conversation.model, item), compacted.paused_stream
    )


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
        return compacted.responses_item(uuid4().hex, sealed)
    events = [one for one in inputs.events if one.rendered and one.type not in PREFIX]
    events = [*events[:1], *events[1:][-EVENTS_MAX:]]
    previous = "\n\n".join(one.text for one in inputs.loaded.folded if one.text)
    summary = write_summary(events, (), previous, digest_of(events), SUMMARY_TOKENS, inputs.counter)
    return compacted.anthropic_block(summary, sealed)


def check_sendable(place: compacted.CompactedPlace | None, error: Exception) -> None:
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
