"""Reconciliation of a client's complete messages with the log of its session.

Most clients send their whole conversation with every call. Its new messages are appended to the line that it continues:
the current one, another one whose end the client has returned to, or a fork where it diverged. A conversation with an
unknown beginning gets a line of its own. Whatever the client did (a retry, an edit, another branch, a sub-agent, a
compaction of its own), the model sees the client's conversation, and nothing is lost.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from app.core.assembly.inputs import ContextRequest
from app.core.errors import DuplicateCall, InvalidRequest, UnknownCall
from app.core.log.appends import check, place, tool_definitions
from app.core.log.conversation import Link, canonical_prompt, canonical_tool_list, links
from app.core.log.events import NO_PROMPT, Draft, EventType, Json
from app.core.log.segments import is_line, line_of, session_of
from app.resources.contexts.service import Assembly, ContextAnswer
from app.resources.events.appends import AppendRequest, EventReceipt, SessionSnapshot, WaitingLists
from app.resources.events.service import Appending, Ingest, PreparedAppend
from app.resources.lines.service import Lines, current_row, lock_or_create
from app.resources.policies.service import Policies
from app.resources.reconcile.messages import (
    INLINE_MESSAGES_MAX,
    AppliedList,
    ClientEvent,
    ClientList,
    ClientMessages,
    ListReader,
    Reconciled,
    client_plan_of,
    seqs_by_message,
)
from app.resources.sessions.service import EventRates, SessionQuota
from app.store import answers, event_log, lines, sessions
from app.store.answers import KeyClaim, ResponseToStore
from app.store.engine import Connection, Database
from app.store.ids import SessionRef, session_key
from app.store.sessions import SessionRow
from app.tokenizers import Counting

KEPT_MAX: Final = 2_000
"""Lines whose prompts, tools and chained seqs a process keeps."""


@dataclass(frozen=True, slots=True)
class _InForce:
    """The system prompts and tools in force on a line. `tools` are in a form to compare, `definitions` as logged.
    `definitions` without `tools` were left out by a fork and must be appended again."""

    prompts: tuple[bytes, ...] = ()
    prompt_seqs: tuple[int, ...] = ()
    tools: bytes | None = None
    definitions: Json = None


@dataclass(eq=False)
class Reconcile:
    """Makes contexts for clients' complete messages."""

    _database: Database
    _counting: Counting
    _policies: Policies
    _ingest: Ingest
    _assembly: Assembly
    _lines: Lines
    _quota: SessionQuota
    _rates: EventRates
    _waiting: WaitingLists = field(default_factory=WaitingLists, init=False)
    _reader: ListReader = field(default_factory=ListReader, init=False)
    _in_force: OrderedDict[tuple[object, ...], _InForce] = field(default_factory=OrderedDict, init=False)
    _seqs: OrderedDict[tuple[UUID, object], list[int]] = field(default_factory=OrderedDict, init=False)

    async def read(self, tenant_id: UUID, address: str, given: ClientList) -> ClientMessages:
        """Read a client's list as events. Raises InvalidMessage or InvalidEvent."""
        if given.is_long:
            return await asyncio.to_thread(self._reader.read, tenant_id, address, given)
        return self._reader.read(tenant_id, address, given)

    async def context(
        self,
        tenant_id: UUID,
        address: str,
        given: ClientMessages,
        request: ContextRequest,
        keep: ResponseToStore[Reconciled] | None = None,
    ) -> Reconciled:
        """Append a client's new messages to the line that they continue, and return its next context.

        The append stays if no context can be made. Raises the errors of an append and of `Assembly.context`, and
        InvalidRequest for a line instead of a session, or an `at`.
        """
        applied = await self.append(tenant_id, address, given, request, None if keep is None else keep.claim)
        by_message = seqs_by_message(given, applied.seqs, applied.prompts)

        done: Reconciled | None = None

        async def reconciled(answer: ContextAnswer) -> Reconciled:
            nonlocal done
            plan_of = partial(client_plan_of, answer, by_message)
            plan = await asyncio.to_thread(plan_of) if given.count > INLINE_MESSAGES_MAX else plan_of()
            done = Reconciled(answer, applied.appended, plan)
            return done

        keeping = None if keep is None else keep.composed_with(reconciled)
        answer = await self._assembly.context(tenant_id, applied.line, request, applied.head, keeping)
        return done or await reconciled(answer)

    async def context_only(
        self, tenant_id: UUID, address: str, given: ClientMessages, request: ContextRequest
    ) -> ContextAnswer:
        """Do what `context` does, without a plan for the client's messages."""
        applied = await self.append(tenant_id, address, given, request)
        return await self._assembly.context(tenant_id, applied.line, request, applied.head)

    async def append_to_side_line(self, tenant_id: UUID, line: str, at: int, drafts: Sequence[Draft]) -> None:
        """Append events after a seq of a line that has continued since, on a line of their own; the name does not move.

        Nothing is done if some line has them already. Raises the errors of an append, NotFound, and TooManyLines.
        """
        async with self._database.transaction() as tx:
            root = await sessions.get_locked(tx, tenant_id, session_of(line))
            row = await lines.extend_chain(tx, root.session_id, await sessions.get_locked(tx, tenant_id, line))
            tip = await lines.tip_at(tx, root, row, at)
            new_links = await asyncio.to_thread(links, [draft.body() for draft in drafts], tip.hash)
            if not new_links or await lines.find_longest_chain(tx, root.session_id, [new_links[-1].hash]):
                return
            made = await self._lines.branch(tx, root, row, at)
            events = [ClientEvent(draft, None) for draft in drafts]
            _, appending, _, _ = await self._append(tx, root, made, events, new_links)
            await self._lines.switch_to(tx, root, await current_row(tx, root))  # `branch` has moved it
        self._ingest.finish(appending)

    async def append(
        self,
        tenant_id: UUID,
        address: str,
        given: ClientMessages,
        request: ContextRequest,
        claim: KeyClaim | None = None,
    ) -> AppliedList:
        """Append the client's new messages; store their places under the request's key, if it has one.

        A repetition after a lost response therefore returns the same events and the same context. Raises the errors of
        an append, and InvalidRequest for a line instead of a session, or an `at`.
        """
        if is_line(address):
            raise InvalidRequest("messages are for the session: name it without its line", field="sid")
        if not given.links:
            raise InvalidRequest("messages contain no conversation", field="messages")
        if request.at is not None:
            raise InvalidRequest("leave out `at`: the conversation ends with the last message", field="at")
        async with self._waiting.exclusive(session_key(tenant_id, address)):
            applied, appending = await self._append_in_transaction(tenant_id, address, given, request.model, claim)
            if appending is not None:
                self._ingest.finish(appending)
        return applied

    async def _append_in_transaction(
        self, tenant_id: UUID, address: str, given: ClientMessages, model: str | None, claim: KeyClaim | None
    ) -> tuple[AppliedList, Appending | None]:
        """Find or create the line and append to it, in one transaction."""
        async with self._database.transaction() as tx:
            estimator = self._counting.estimator(model).name
            root = await lock_or_create(tx, tenant_id, address, self._quota, estimator=estimator, model=model)
            before = None if claim is None else await answers.find_claimed(tx, claim.for_append)
            if before is not None:
                row = await sessions.get_locked(tx, tenant_id, before["line"])
                seqs = await self._known_seqs(tx, root, row, len(given.links))
                return AppliedList.from_stored(before, seqs), None
            current = await lines.extend_chain(tx, root.session_id, await current_row(tx, root))
            row, known = await self._find_line(tx, root, current, given)
            in_force = await self._find_in_force(tx, row)
            if _prompts_differ(given, in_force) and in_force.prompt_seqs:
                row, in_force = await self._line_without_prompts(tx, root, row, in_force)
            many = len(given.links) - known > INLINE_MESSAGES_MAX
            new = await asyncio.to_thread(given.events_after, known) if many else given.events_after(known)
            events = (*_leading_events(given, in_force), *new)
            seqs = await self._known_seqs(tx, root, row, known)
            prompts: Sequence[int] = in_force.prompt_seqs
            appending = None
            receipts: Sequence[EventReceipt] = ()
            if events:
                chained = given.links_after(known, len(events) - len(new))
                row, appending, added, prompt_seqs = await self._append(tx, root, row, events, chained)
                receipts = appending.appended.events
                seqs, prompts = [*seqs, *added], prompt_seqs or prompts
            appended = tuple((one.index, receipt) for one, receipt in zip(events, receipts, strict=True))
            applied = AppliedList(line_of(row.external_id), row.tip.seq, appended, seqs, prompts)
            if claim is not None and appended:
                await answers.store_claimed(tx, claim.for_append, applied.to_stored())
        self._keep(row, seqs)
        return applied, appending

    async def _find_line(
        self, tx: Connection, root: SessionRow, current: SessionRow, given: ClientMessages
    ) -> tuple[SessionRow, int]:
        """Return the line that the messages continue, locked and current, and the number of their links that it has."""
        hashes = [link.hash for link in given.links]
        tip = current.tip
        begins_here = given.links[0].place >= 0  # and not with messages that only the log has
        if (tip.number == 0 and begins_here) or (0 < tip.number <= len(hashes) and hashes[tip.number - 1] == tip.hash):
            return current, tip.number
        for name in await lines.unchained_lines(tx, root.ref):
            await lines.extend_chain(tx, root.session_id, await sessions.get_locked(tx, root.tenant_id, name))
        found = await lines.find_longest_chain(tx, root.session_id, hashes)
        if not found:
            return await self._lines.create_empty(tx, root, current), 0
        number = found[0].number
        ended = await lines.with_tip(tx, root.ref, number, hashes[number - 1])
        if ended is not None:
            await self._lines.switch_to(tx, root, ended)
            return ended, number
        at = next((one for one in found if one.line == current.session_id), found[0])
        row = current if at.line == current.session_id else await sessions.lock(tx, SessionRef(at.line, root.tenant_id))
        if row is None:
            raise RuntimeError("a line that has a chain is not there")
        return await self._lines.branch(tx, root, row, at.seq), number

    async def _find_in_force(self, tx: Connection, row: SessionRow) -> _InForce:
        """Return the prompts and tools in force on a line, which change only with the numbers in the cache's key."""
        key = (row.session_id, row.created_at, row.system_seq, row.tools_seq, row.redactions)
        known = self._in_force.get(key)
        if known is not None:
            return known
        seqs = await event_log.prompts(tx, row.log, row.system_seq)
        found = await event_log.events_at(tx, row.log, {*seqs, row.tools_seq} - {0})
        bodies = {one.seq: (one.body or {}).get("content") for one in found}
        tools = bodies.get(row.tools_seq)
        read = _InForce(
            tuple(canonical_prompt(bodies[seq]) for seq in seqs),
            tuple(seqs),
            None if tools is None else canonical_tool_list(tool_definitions(tools)),
            tools,
        )
        _remember(self._in_force, key, read)
        return read

    async def _line_without_prompts(
        self, tx: Connection, root: SessionRow, row: SessionRow, in_force: _InForce
    ) -> tuple[SessionRow, _InForce]:
        """Return the line to append the new system prompts to, and the prompts and tools in force on it. If no
        conversation follows the old prompts, new ones would be added to them; it is then a fork from before them."""
        if await event_log.has_conversation(tx, row.log, row.system_seq, row.state.head):
            return row, in_force
        first = in_force.prompt_seqs[0]
        lost = in_force.definitions if in_force.tools and row.tools_seq >= first else None
        row = await self._lines.branch(tx, root, row, first - 1)
        standing = await self._find_in_force(tx, row)
        return row, standing if lost is None else replace(standing, tools=None, definitions=lost)

    async def _append(
        self, tx: Connection, root: SessionRow, row: SessionRow, events: Sequence[ClientEvent], new: Sequence[Link]
    ) -> tuple[SessionRow, Appending, list[int], list[int]]:
        """Append events to a line, whose chain is extended by the links `new`. Return the line with its tip, the
        events, and the seqs of the chained ones and of the prompts."""
        drafts = [one.draft for one in events]
        self._rates.take(root.tenant_id, len(drafts))
        hint = SessionSnapshot.of(row)
        policy = await self._policies.get(root.tenant_id, row.policy, tx)
        counter = self._counting.session_counter(row.estimator, row.model)
        bodies, tokens = await self._counting.prepare(drafts, counter)
        try:
            batch = place(drafts, tokens, row.state.turn)
            check(row.state, batch, None)
        except (UnknownCall, DuplicateCall) as error:
            raise _with_message_index(error, events) from None
        request = AppendRequest(tuple(drafts), None, None, b"")
        prepared = PreparedAppend(row.external_id, row.ref, request, hint, policy, bodies, tokens)
        appending = await self._ingest.apply(tx, prepared, batch)
        head = appending.appended.head
        before = head - len(drafts)
        added = [before + 1 + link.place for link in new]
        row = await lines.add_links(tx, root.session_id, row, added, [link.hash for link in new], head)
        prompts = [before + n for n, draft in enumerate(drafts, 1) if draft.type is EventType.SYSTEM_PROMPT]
        return row, appending, added, prompts

    async def _known_seqs(self, tx: Connection, root: SessionRow, row: SessionRow, known: int) -> list[int]:
        """Return the seqs of the line's first `known` links."""
        kept = self._seqs.get((row.session_id, row.created_at), [])
        if len(kept) < known:
            kept = await lines.chained_seqs(tx, root, row)
        return kept[:known]

    def _keep(self, row: SessionRow, seqs: Sequence[int]) -> None:
        """Keep the seqs of a line's links, which only grow."""
        _remember(self._seqs, (row.session_id, row.created_at), list(seqs))


def _prompts_differ(given: ClientMessages, in_force: _InForce) -> bool:
    """Return whether the client's system prompts, or their absence, differ from those in force."""
    if given.prompts:
        return given.canonical_prompts != in_force.prompts
    return given.prompts_complete and any(in_force.prompts)


def _leading_events(given: ClientMessages, in_force: _InForce) -> Sequence[ClientEvent]:
    """Return the system prompts and tools that are not in force yet."""
    prompts = (given.prompts or (ClientEvent(NO_PROMPT, None),)) if _prompts_differ(given, in_force) else ()
    tools = given.tools
    if tools is not None and (
        given.canonical_tools == in_force.tools or (not tools.draft.content and not in_force.tools)
    ):
        tools = None
    elif tools is None and in_force.tools is None and in_force.definitions is not None:  # a fork left them out
        tools = ClientEvent(Draft(EventType.TOOLS, content=in_force.definitions), None)
    return (*prompts, *(() if tools is None else (tools,)))


def _with_message_index(
    error: UnknownCall | DuplicateCall, events: Sequence[ClientEvent]
) -> UnknownCall | DuplicateCall:
    index = error.fields["index"]
    place = events[index].index if isinstance(index, int) else None
    return type(error)(str(error.fields["call_id"]), index=place or 0)


Key = TypeVar("Key")
Kept = TypeVar("Kept")


def _remember(memory: OrderedDict[Key, Kept], key: Key, value: Kept) -> None:
    """Store a value, and keep the newest KEPT_MAX."""
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > KEPT_MAX:
        memory.popitem(last=False)
