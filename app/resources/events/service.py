"""Appending events: validated, counted and stored in one statement, or else decided under the row lock.

The fast path assumes the turn last seen of the session and lets the database check it. A request to which that does not
apply (a stale assumption, a new session, a repeated key or id, an invalid result) is decided again with the row locked.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final
from uuid import UUID

import asyncpg

from app.core import dataclass, field, replace
from app.core.compaction.next_span import readiness
from app.core.errors import CannotFit, IdempotencyConflict, InvalidPolicy, LineChanged
from app.core.log.appends import Batch, changes_turn_state, check, depends_on_state, place
from app.core.log.conversation import name_unnamed
from app.core.log.events import Draft, EventType
from app.core.log.segments import is_line
from app.core.policy.policy import Policy
from app.resources.contexts.view_cache import AddedEvents, ViewCache
from app.resources.events.appends import (
    Appended,
    AppendFacts,
    AppendRequest,
    EventReceipt,
    SessionSnapshot,
    SessionSnapshots,
    WaitingLists,
    event_id,
    find_original,
    measure_pressure,
    order_receipts,
    receipt,
)
from app.resources.lines.service import Lines, lock_or_create
from app.resources.policies.service import Policies
from app.resources.sessions.service import SessionQuota
from app.store import event_log, log
from app.store.engine import Connection, Database, Executor
from app.store.event_log import SessionLog
from app.store.ids import SessionRef, session_ref
from app.store.log import NO_TRIGGER, AppendSettings, CompactionTrigger
from app.store.rows import StoredEvent
from app.store.sessions import SessionRow
from app.tokenizers import Counting

PREPARE_RATIO: Final = 0.5
"""Share of the trigger at which summaries are prepared when a turn ends."""


@dataclass(frozen=True, slots=True)
class PreparedAppend:
    """An append to the session row `row_name`: its events in stored form, with their tokens as counted for the model
    and estimator of the snapshot `hint`."""

    row_name: str
    ref: SessionRef
    request: AppendRequest
    hint: SessionSnapshot
    policy: Policy
    bodies: list[str]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Appending:
    """An append that may not be committed yet, and the events that it adds; None if they had been appended before."""

    session_id: UUID
    appended: Appended
    added: AddedEvents | None = None


@dataclass(eq=False)
class Ingest:
    """Appends events."""

    _database: Database
    _counting: Counting
    _policies: Policies
    _view_cache: ViewCache
    _quota: SessionQuota
    _snapshots: SessionSnapshots
    _lines: Lines
    _waiting: WaitingLists = field(default_factory=WaitingLists, init=False)

    async def append(self, tenant_id: UUID, address: str, request: AppendRequest) -> Appended:
        """Append all events or none, to the line that a client's address means. Raises a subclass of ContextError."""
        row_name = await self._lines.resolve_remembered(tenant_id, address, request.key)
        for _ in range(2):
            prepared = await self.prepare(tenant_id, row_name, request)
            try:
                async with self.exclusive(prepared.ref):
                    try:
                        appending = await self.append_unlocked(self._database, prepared)
                    except asyncpg.UniqueViolationError:
                        appending = None
                    if appending is None:
                        async with self._database.transaction() as tx:
                            appending = await self.append_locked(tx, prepared)
                    return self.finish(appending)
            except LineChanged as moved:
                row_name = await self._lines.remember_moved(tenant_id, address, moved.line, request.key)
        raise LineChanged(row_name)

    async def prepare(self, tenant_id: UUID, row_name: str, request: AppendRequest) -> PreparedAppend:
        """Count the events for a session row. Raises InvalidEvent."""
        ref = session_ref(tenant_id, row_name)
        hint = await self._snapshots.get(ref)
        counter = self._counting.session_counter(hint.estimator, hint.model)
        bodies, tokens = await self._counting.prepare(request.drafts, counter)
        policy = await self._policies.get(tenant_id, hint.policy)
        return PreparedAppend(row_name, ref, request, hint, policy, bodies, tokens)

    def exclusive(self, ref: SessionRef) -> AbstractAsyncContextManager[None]:
        """Return a context manager whose block runs alone among the blocks of this Ingest for the session, in the order
        of arrival. Appends of Reconcile and Turns do not wait here; the lock of the session's row orders them."""
        return self._waiting.exclusive(ref.session_id)

    async def append_unlocked(self, connection: Executor, prepared: PreparedAppend) -> Appending | None:
        """Append in one statement if the session is still as in its snapshot; return None if the append must be made
        under the row's lock. Raises asyncpg.UniqueViolationError if the key or an event id was used before; that append
        must be made under the lock, too."""
        request, hint, ref = prepared.request, prepared.hint, prepared.ref
        if _leading_prompts(request.drafts) or await self._repeats_shared(connection, hint, request.drafts):
            return None
        batch = place(request.drafts, prepared.tokens, hint.turn)
        applied = await log.append(
            connection,
            ref,
            batch,
            prepared.bodies,
            expected_head=request.expected_head,
            expected_turn=hint.turn if depends_on_state(request.drafts) else None,
            expected=AppendSettings(hint.estimator, hint.model, *hint.policy, list(hint.log.ancestors)),
            key=request.key,
            request_sha256=request.request_sha256,
            trigger=self.compaction_trigger(prepared.policy, hint.model, batch),
            current_line_only=not is_line(prepared.row_name),
        )
        if applied is None:
            return None
        if changes_turn_state(request.drafts):
            self._snapshots.put(ref.session_id, replace(hint, turn=batch.turn_after))
        return self._appending(prepared, batch, applied)

    async def append_locked(self, tx: Connection, prepared: PreparedAppend) -> Appending:
        """Append with the session's row locked, or find the events that an equal request has appended."""
        row_name, ref, request, hint = prepared.row_name, prepared.ref, prepared.request, prepared.hint
        bodies, tokens = prepared.bodies, prepared.tokens
        counted_by: tuple[str, str | None] | None = (hint.estimator, hint.model)
        estimator = self._counting.estimator(None).name
        session = await lock_or_create(tx, ref.tenant_id, row_name, self._quota, estimator=estimator)
        if session.line is not None and not is_line(row_name):
            raise LineChanged(session.line)
        state, hint = session.state, SessionSnapshot.of(session)
        policy = await self._policies.get(ref.tenant_id, session.policy, tx)
        if (before := await find_original(tx, ref.session_id, request)) is not None:
            return Appending(ref.session_id, await self._original_answer(tx, session, request, before, policy))
        named = name_unnamed(request.drafts, state.open_calls)
        if named is not request.drafts:  # None: naming calls has changed the events, so count them again
            request, counted_by = replace(request, drafts=tuple(named)), None
        if (hint.estimator, hint.model) != counted_by:
            counter = self._counting.session_counter(hint.estimator, hint.model)
            bodies, tokens = await self._counting.prepare(request.drafts, counter)
        known = await _known_events(tx, session.log, request.drafts, bodies)
        new = [i for i, d in enumerate(request.drafts) if d.id is None or d.id not in known]
        if not new:
            head = max(stored.seq for stored in known.values())
            through = await event_log.tokens_through(tx, session.log, head)
            facts = AppendFacts.without_new_events(session, head, through)
            return Appending(ref.session_id, await self._original_answer(tx, session, request, facts, policy))
        begun = state.head > 0 and _leading_prompts(request.drafts) > 0
        begun = begun and await event_log.has_conversation(tx, hint.log)
        drafts, bodies, tokens = _select_new(request.drafts, bodies, tokens, new, begun=begun)
        batch = place(drafts, tokens, state.turn)
        check(state, batch, request.expected_head)
        prepared = PreparedAppend(row_name, ref, request, hint, policy, bodies, tokens)
        appending = await self.apply(tx, prepared, batch)
        if known:
            appended = appending.appended
            events = order_receipts(request.drafts, known, appended.events, ref.session_id)
            appending = replace(appending, appended=replace(appended, events=events))
        return appending

    async def apply(self, tx: Connection, prepared: PreparedAppend, batch: Batch) -> Appending:
        """Append a batch under the session's lock. `prepared.hint` must be the snapshot of the locked row, by which the
        batch was placed."""
        ref, request, hint = prepared.ref, prepared.request, prepared.hint
        applied = await log.append(
            tx,
            ref,
            batch,
            prepared.bodies,
            expected_head=None,
            expected_turn=hint.turn,
            expected=AppendSettings(),
            key=request.key,
            request_sha256=request.request_sha256,
            trigger=self.compaction_trigger(prepared.policy, hint.model, batch),
        )
        if applied is None:
            raise RuntimeError("a batch that was checked under the lock did not apply")
        self._snapshots.put(ref.session_id, replace(hint, turn=batch.turn_after))  # each append checks it
        return self._appending(prepared, batch, applied)

    def finish(self, appending: Appending) -> Appended:
        """Return the response to an append that is committed now, and add its events to the views held in memory."""
        if appending.added is not None:
            self._view_cache.add_events(appending.session_id, appending.added)
        return appending.appended

    async def _repeats_shared(self, connection: Executor, hint: SessionSnapshot, drafts: Sequence[Draft]) -> bool:
        """Return whether a fork's append repeats an event id of an ancestor; the index checks the fork's own ids."""
        names = [draft.id for draft in drafts if draft.id is not None] if hint.log.ancestors else []
        return bool(names and await event_log.by_ids(connection, hint.log, names, own=False))

    def compaction_trigger(self, policy: Policy, model: str | None, batch: Batch) -> CompactionTrigger:
        """Return the threshold at which this append enqueues a compaction: lower if it ends a turn."""
        if not policy.summarize.enabled:
            return NO_TRIGGER
        try:
            budget = self._counting.own_budget(policy, model)
        except (CannotFit, InvalidPolicy):  # the model's window is too small for it; a context request will say so
            return NO_TRIGGER
        ends = batch.turns_begun > 0 or any(p.draft.type is EventType.TURN_END for p in batch.placed)
        ratio = min(PREPARE_RATIO, policy.soft_ratio) if ends else policy.soft_ratio
        return CompactionTrigger(ratio * budget.threshold / budget.target, budget.target, readiness(policy))

    def _appending(self, prepared: PreparedAppend, batch: Batch, applied: log.AppendResult) -> Appending:
        before, session_id = applied.before, prepared.ref.session_id
        rows = tuple(
            EventReceipt(
                before.head + p.offset,
                p.draft.id or event_id(session_id, before.head + p.offset),
                before.turns + p.turn_offset,
                p.tokens,
            )
            for p in batch.placed
        )
        tokens = before.tokens + batch.tokens + applied.carry_tokens
        model, policy = prepared.hint.model, prepared.policy
        main_pressure = measure_pressure(tokens, applied.target, policy, model, self._counting)
        appended = Appended(prepared.row_name, before.head + len(rows), applied.epoch, rows, main_pressure)
        return Appending(session_id, appended, AddedEvents(applied, batch, prepared.bodies))

    async def _original_answer(
        self, tx: Connection, session: SessionRow, request: AppendRequest, facts: AppendFacts, policy: Policy
    ) -> Appended:
        """Rebuild the original response for a repeated request."""
        known = await event_log.by_ids(tx, session.log, [d.id for d in request.drafts if d.id is not None])
        stored = await event_log.stored(tx, session.log, facts.first - 1, facts.head - facts.first + 1)
        nameless = [receipt(session.session_id, one) for one in stored if one.event_id is None]
        rows = order_receipts(request.drafts, known, nameless, session.session_id)
        main_pressure = measure_pressure(facts.tokens, facts.target, policy, session.model, self._counting)
        return Appended(session.external_id, facts.head, facts.epoch, rows, main_pressure, created=False)


def _leading_prompts(drafts: Sequence[Draft]) -> int:
    """Count the provider's system messages at the start; they are system prompts only before any conversation."""
    prompts = (draft.type is EventType.SYSTEM_PROMPT and draft.native is not None for draft in drafts)
    return next((count for count, is_prompt in enumerate(prompts) if not is_prompt), len(drafts))


def _select_new(
    drafts: Sequence[Draft], bodies: Sequence[str], tokens: Sequence[int], new: Sequence[int], *, begun: bool
) -> tuple[list[Draft], list[str], list[int]]:
    """Return the new events; if the conversation has `begun`, native system prompts at their start become messages."""
    chosen = [drafts[i] for i in new]
    texts = [bodies[i] for i in new]
    for index in range(_leading_prompts(chosen) if begun else 0):
        chosen[index] = replace(chosen[index], type=EventType.SYSTEM_MESSAGE)
        texts[index] = _as_system_message(texts[index])
    return chosen, texts, [tokens[i] for i in new]


def _as_system_message(body: str) -> str:
    head = '{"type":"system.prompt"'
    return '{"type":"system.message"' + body.removeprefix(head) if body.startswith(head) else body


async def _known_events(
    tx: Connection, log: SessionLog, drafts: Sequence[Draft], bodies: Sequence[str]
) -> dict[str, StoredEvent]:
    """Return the request's events that are in the log already. Raises IdempotencyConflict if their content differs."""
    named = {draft.id: body for draft, body in zip(drafts, bodies, strict=True) if draft.id is not None}
    if not named:
        return {}
    known = await event_log.by_ids(tx, log, list(named))
    for name, stored in known.items():
        if stored.body not in (named[name], _as_system_message(named[name])):
            raise IdempotencyConflict(f"event id {name!r} was used with other content", id=name, seq=stored.seq)
    return known
