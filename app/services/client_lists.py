"""Contexts for the message lists that clients send through the gateway."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from app.core.assembly.inputs import ContextRequest
from app.core.gateway.calls import AT_PROVIDER, NOT_IN_LOG, CallConversation, NotBudgeted, holds_results
from app.core.log.chain import START, Link, links
from app.core.log.events import Json
from app.resources.contexts.service import Assembly, ContextAnswer
from app.resources.reconcile.messages import ClientList, ClientMessages
from app.resources.reconcile.service import Reconcile
from app.store import chain, lines, sessions
from app.store.engine import Database

REPLY_WAITS: Final = (0.0, 0.02, 0.1, 0.4)
"""Seconds before each lookup of a reply that a client names."""


class ClientLists:
    """Matches clients' message lists with their sessions' lines and makes contexts for them."""

    def __init__(self, database: Database, reconcile: Reconcile, assembly: Assembly) -> None:
        self._database = database
        self._reconcile = reconcile
        self._assembly = assembly

    async def context(
        self, tenant_id: UUID, session: str, of: CallConversation, request: ContextRequest
    ) -> ContextAnswer:
        """Return the next context of the line that a list continues. Raises NotBudgeted, or what `Reconcile` raises."""
        if of.previous is None:
            given = await self._reconcile.read(tenant_id, session, _client_list(of))
        else:
            read = await asyncio.to_thread(replace(_client_list(of), complete=False).read)
            given = await self._complete(tenant_id, session, of.previous, read)
        return await self._reconcile.context_only(tenant_id, session, given, request)

    async def _complete(self, tenant_id: UUID, session: str, reply: str, given: ClientMessages) -> ClientMessages:
        """Complete the list of a client that sends only the messages after a reply. Raises NotBudgeted.

        The earlier messages are in the log; only their last link is needed.
        """
        line, seq = await self._find_reply(tenant_id, session, reply)
        async with self._database.transaction() as tx:
            root = await sessions.get_locked(tx, tenant_id, session)
            row = root if line == session else await sessions.get_locked(tx, tenant_id, line)
            row = await chain.extend(tx, root.session_id, row)
            tip = await chain.tip_at(tx, tenant_id, root, row, seq)
        before = [Link(-1, START)] * (tip.number - 1) + [Link(-1, tip.hash)] * (tip.number > 0)
        behind = await asyncio.to_thread(links, given.raw, tip.hash)
        return replace(given, links=(*before, *behind))

    async def _find_reply(self, tenant_id: UUID, session: str, reply: str) -> tuple[str, int]:
        """Return the row and seq of a reply, which may still be on its way into the log. Raises NotBudgeted."""
        for seconds in REPLY_WAITS:
            await asyncio.sleep(seconds)
            found = await lines.of_event(self._database, tenant_id, session, reply)
            if found is not None:
                return found
        raise NotBudgeted(AT_PROVIDER)

    async def preview(
        self, tenant_id: UUID, session: str, of: CallConversation, request: ContextRequest
    ) -> tuple[ContextAnswer, int]:
        """Return a context to replace the first messages of a list, and their number, without recording it.

        They are the messages in the log, up to the end of a round. Raises NotBudgeted if there are none, or a context's
        errors.
        """
        given = await self._reconcile.read(tenant_id, session, _client_list(of))
        key = sessions.session_key(tenant_id, session)
        async with self._database.transaction() as tx:
            found = await chain.find_longest(tx, key, [link.hash for link in given.links])
            count = _whole_messages(given, of.messages, found[0].number if found else 0)
            hashes = [link.hash for link in given.links if given.indices[link.place] < count]
            found = await chain.find_longest(tx, key, hashes)
            row = await sessions.find(tx, found[0].line, tenant_id) if found else None
        if row is None or not count:
            raise NotBudgeted(NOT_IN_LOG)
        assembled = await self._assembly.plan(tenant_id, row.external_id, replace(request, at=found[0].seq))
        return ContextAnswer(row.external_id, assembled, "none"), count


def _whole_messages(given: ClientMessages, messages: Sequence[Json], known: int) -> int:
    """Count the messages of the first `known` links, without a call whose results follow them."""
    rest = given.links[known:]
    count = len(messages) if not rest else given.indices[rest[0].place]
    while 0 < count < len(messages) and holds_results(messages[count]):
        count -= 1
    return count


def _client_list(of: CallConversation) -> ClientList:
    """Return a call's list. An absent field is empty, except in an Anthropic thread that continues from a reply."""
    complete = of.previous is None or of.format != "anthropic"
    tools: Json = [] if complete and of.tools is None else of.tools
    return ClientList(of.format, of.messages, of.system, tools, all_prompts=complete)
