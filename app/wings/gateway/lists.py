"""Calls' lists, completed by the log, and their contexts."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from app.core.assembly.inputs import ContextRequest
from app.core.errors import CannotFit, InvalidPolicy
from app.core.log.events import Json
from app.core.wire.calls import AT_PROVIDER, NOT_IN_LOG, CallConversation, NotBudgeted, holds_results
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
