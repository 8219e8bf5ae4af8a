"""Appending events: validated, counted and stored in one statement; explained under the row lock when it does not fit.

The fast path assumes what it last saw of the session's turn and lets the database check it. Whatever does not apply
(a stale assumption, a new session, a repeated key or id, a bad result) is decided once more with the row locked.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import asyncpg

from app.core.compaction.next_span import readiness
from app.core.errors import CannotFit, Conflict, IdempotencyConflict, InvalidPolicy
from app.core.log.event import Batch, SessionState, check, place
from app.core.log.events import Draft, EventType
from app.core.log.turns import depends_on_state, moves_state
from app.core.policy.policy import Policy
from app.core.tokens.budget import own_budget
from app.services.appends import (
    Appended,
    AppendFacts,
    AppendRequest,
    EventReceipt,
    answered_before,
    event_id,
    in_request_order,
    pressure,
    receipt,
)
from app.services.counting import Counting
from app.services.limits import SessionQuota
from app.services.policies import Policies
from app.services.snapshots import SessionSnapshot, SessionSnapshots
from app.services.view_cache import ViewCache
from app.services.waiting import WaitingLists
from app.store import log, sessions
from app.store.engine import Connection, Database
from app.store.lineage import inherited
from app.store.log import CompactionTrigger, StoredEvent

PREPARE_RATIO: Final = 0.5
"""Of what a context may take before it is reduced: from here on summaries are written ahead when a turn ends."""


class Ingest:
    """The append use case."""

    def __init__(
        self,
        database: Database,
        counting: Counting,
        policies: Policies,
        view_cache: ViewCache,
        quota: SessionQuota,
        snapshots: SessionSnapshots,
    ) -> None:
        self._quota = quota
        self._database = database
        self._counting = counting
        self._policies = policies
        self._view_cache = view_cache
        self._snapshots = snapshots
        self._waiting = WaitingLists()

    async def append(self, tenant_id: UUID, external_id: str, request: AppendRequest) -> Appended:
        """Append all or nothing. Raises whatever of the error tree says why not."""
        session_id = sessions.session_key(tenant_id, external_id)
        hint = await self._snapshots.get(tenant_id, session_id)
        counter = self._counting.session_counter(hint.estimator, hint.model)
        bodies, tokens = await self._counting.prepare(request.drafts, counter)
        policy = await self._policies.get(tenant_id, hint.policy)
        async with self._waiting.through(session_id):
            if not _leading_prompts(request.drafts) and not await self._repeats_shared(hint, request.drafts):
                batch = place(request.drafts, tokens, hint.turn)
                expected_turn = hint.turn if depends_on_state(request.drafts) else None
                try:
                    applied = await log.append(
                        self._database,
                        session_id,
                        tenant_id,
                        batch,
                        bodies,
                        expected_head=request.expected_head,
                        expected_turn=expected_turn,
                        expected_estimator=hint.estimator,
                        expected_lineage=hint.lineage,
                        key=request.key,
                        request_sha256=request.request_sha256,
                        trigger=self.ring(policy, hint.model, batch),
                    )
                except asyncpg.UniqueViolationError:
                    applied = None
                if applied is not None:
                    if moves_state(request.drafts):
                        self._snapshots.put(session_id, replace(hint, turn=batch.turn_after))
                    return self.answer(external_id, session_id, batch, bodies, applied, hint, policy)
            return await self._append_locked(tenant_id, external_id, session_id, request, hint, policy, bodies, tokens)

    async def _append_locked(
        self,
        tenant_id: UUID,
        external_id: str,
        session_id: UUID,
        request: AppendRequest,
        hint: SessionSnapshot,
        policy: Policy,
        bodies: list[str],
        tokens: list[int],
    ) -> Appended:
        counted_by = hint.estimator
        async with self._database.transaction() as tx:
            state, hint = await self._locked_state(tx, tenant_id, external_id, session_id, hint)
            if (before := await answered_before(tx, session_id, request)) is not None:
                return await self.first_answer(tx, external_id, session_id, request, before, hint, policy)
            known = await _known_events(tx, session_id, request.drafts, bodies)
            new = [i for i, d in enumerate(request.drafts) if d.id is None or d.id not in known]
            if not new:
                facts = await _facts(tx, session_id, max(stored.seq for stored in known.values()))
                return await self.first_answer(tx, external_id, session_id, request, facts, hint, policy)
            if hint.estimator != counted_by:
                counter = self._counting.session_counter(hint.estimator, hint.model)
                bodies, tokens = await self._counting.prepare(request.drafts, counter)
            leads = state.head > 0 and _leading_prompts(request.drafts) > 0
            spoken = leads and await log.spoken(tx, session_id, hint.lineage)
            drafts, bodies, tokens = _rebase(request.drafts, bodies, tokens, new, spoken=spoken)
            batch = place(drafts, tokens, state.turn)
            check(state, batch, request.expected_head)
            applied = await self.apply(tx, tenant_id, session_id, request, state, batch, bodies, hint, policy)
        answer = self.answer(external_id, session_id, batch, bodies, applied, hint, policy)
        if known:
            answer = replace(answer, events=in_request_order(request.drafts, known, answer.events, session_id))
        return answer

    async def apply(
        self,
        tx: Connection,
        tenant_id: UUID,
        session_id: UUID,
        request: AppendRequest,
        state: SessionState,
        batch: Batch,
        bodies: Sequence[str],
        hint: SessionSnapshot,
        policy: Policy,
    ) -> log.AppendResult:
        """Append a batch that was laid out for `state` under the session's lock."""
        applied = await log.append(
            tx,
            session_id,
            tenant_id,
            batch,
            bodies,
            expected_head=None,
            expected_turn=state.turn,
            expected_estimator=None,
            expected_lineage=None,
            key=request.key,
            request_sha256=request.request_sha256,
            trigger=self.ring(policy, hint.model, batch),
        )
        if applied is None:
            raise RuntimeError("a batch that was checked under the lock did not apply")
        self._snapshots.put(
            session_id, replace(hint, turn=batch.turn_after)
        )  # an assumption, should `tx` not be committed
        return applied

    async def _repeats_shared(self, hint: SessionSnapshot, drafts: Sequence[Draft]) -> bool:
        """Whether a fork is given an event whose id it has from an ancestor; its own are the index's to find."""
        names = [draft.id for draft in drafts if draft.id is not None] if hint.lineage else []
        return bool(names and await log.shared_ids(self._database, hint.lineage, names))

    def ring(self, policy: Policy, model: str | None, batch: Batch) -> CompactionTrigger | None:
        """When this append lets a worker look at the session: earlier where a turn ends, since nobody waits then."""
        if not policy.summarize.enabled:
            return None
        try:
            budget = own_budget(policy, model, self._counting.counter(model, policy).estimator.margin)
        except (CannotFit, InvalidPolicy):  # the model's own window is too small for it; a context will say so
            return None
        ends = batch.turns_begun > 0 or any(p.draft.type is EventType.TURN_END for p in batch.placed)
        ratio = min(PREPARE_RATIO, policy.soft_ratio) if ends else policy.soft_ratio
        return CompactionTrigger(ratio * budget.threshold / budget.target, budget.target, readiness(policy))

    async def _locked_state(
        self, tx: Connection, tenant_id: UUID, external_id: str, session_id: UUID, hint: SessionSnapshot
    ) -> tuple[SessionState, SessionSnapshot]:
        """The session's state under its lock, created if it is new; the hint with its true estimator and lineage."""
        if await sessions.create(tx, tenant_id, external_id, estimator=hint.estimator):
            await self._quota.admit(tx, tenant_id)
        locked = await log.lock(tx, session_id, tenant_id)
        if locked is None:
            raise Conflict(f"session {external_id!r} is being erased")
        state, estimator, segments = locked
        return state, replace(hint, estimator=estimator, lineage=segments)

    def answer(
        self,
        external_id: str,
        session_id: UUID,
        batch: Batch,
        bodies: Sequence[str],
        applied: log.AppendResult,
        hint: SessionSnapshot,
        policy: Policy,
    ) -> Appended:
        """What an append is answered that has been committed; what is held of its views is extended by it."""
        self._view_cache.appended(session_id, applied, batch, bodies)
        before = applied.before
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
        told = pressure(tokens, applied.target, policy, hint.model, self._counting)
        return Appended(external_id, before.head + len(rows), applied.epoch, rows, told)

    async def first_answer(
        self,
        tx: Connection,
        external_id: str,
        session_id: UUID,
        request: AppendRequest,
        facts: AppendFacts,
        hint: SessionSnapshot,
        policy: Policy,
    ) -> Appended:
        """What the first of two equal requests was answered, from the facts recorded of it."""
        known = await log.by_ids(tx, session_id, [d.id for d in request.drafts if d.id is not None])
        stored = await log.between(tx, session_id, facts.first - 1, facts.head - facts.first + 1)
        nameless = [receipt(session_id, one) for one in stored if one.event_id is None]
        rows = in_request_order(request.drafts, known, nameless, session_id)
        told = pressure(facts.tokens, facts.target, policy, hint.model, self._counting)
        return Appended(external_id, facts.head, facts.epoch, rows, told, created=False)


def _leading_prompts(drafts: Sequence[Draft]) -> int:
    """How many of a provider's system messages lead; they are system prompts only before any conversation."""
    prompts = (draft.type is EventType.SYSTEM_PROMPT and draft.native is not None for draft in drafts)
    return next((count for count, is_prompt in enumerate(prompts) if not is_prompt), len(drafts))


def _rebase(
    drafts: Sequence[Draft], bodies: Sequence[str], tokens: Sequence[int], new: Sequence[int], *, spoken: bool
) -> tuple[list[Draft], list[str], list[int]]:
    """The new events of a request; native system prompts behind conversation (`spoken`) are system messages."""
    chosen = [drafts[i] for i in new]
    texts = [bodies[i] for i in new]
    for index in range(_leading_prompts(chosen) if spoken else 0):
        chosen[index] = replace(chosen[index], type=EventType.SYSTEM_MESSAGE)
        texts[index] = _as_system_message(texts[index])
    return chosen, texts, [tokens[i] for i in new]


def _as_system_message(body: str) -> str:
    head = '{"type":"system.prompt"'
    return '{"type":"system.message"' + body.removeprefix(head) if body.startswith(head) else body


async def _facts(tx: Connection, session_id: UUID, head: int) -> AppendFacts:
    """The facts of an append that ended at `head`, as they stand now."""
    row = await tx.fetchrow(
        "SELECT e.cum_tokens, coalesce(v.carry_tokens, 0) AS carry_tokens, coalesce(v.epoch, 0) AS epoch, v.target "
        "FROM sessions s LEFT JOIN views v ON v.session_id = s.session_id AND v.view = 'main' "
        "LEFT JOIN events e ON e.session_id = s.session_id AND e.seq = :head WHERE s.session_id = :session_id",
        session_id=session_id,
        head=head,
    )
    facts = dict(row) if row else {}
    tokens = facts.pop("cum_tokens", None)
    if tokens is None:
        shared = await inherited(tx, session_id, "seq, cum_tokens", head, head)
        tokens = sum(one["cum_tokens"] for one in shared)
    return AppendFacts(head, head + 1, tokens=tokens + facts.pop("carry_tokens", 0), **facts)


async def _known_events(
    tx: Connection, session_id: UUID, drafts: Sequence[Draft], bodies: Sequence[str]
) -> dict[str, StoredEvent]:
    """The events of the request that are in the log already. Raises IdempotencyConflict where the content differs."""
    named = {draft.id: body for draft, body in zip(drafts, bodies, strict=True) if draft.id is not None}
    if not named:
        return {}
    known = await log.by_ids(tx, session_id, list(named))
    for name, stored in known.items():
        if stored.body not in (named[name], _as_system_message(named[name])):
            raise IdempotencyConflict(f"event id {name!r} was used with other content", id=name, seq=stored.seq)
    return known
