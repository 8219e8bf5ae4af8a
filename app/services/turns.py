"""Turns: their list, and their explicit end."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from app.core.errors import Conflict
from app.core.log.event import place
from app.core.log.events import ANNOUNCE, Draft, EventType, Json
from app.core.log.turns import Turn, turn_of
from app.core.policy.policy import Policy
from app.core.render.layers import standing
from app.services.counting import Counting
from app.services.ingest import (
    Appended,
    AppendRequest,
    Ingest,
    SessionSnapshot,
    answered_before,
    as_appended,
    event_id,
    pressure,
)
from app.services.policies import Policies
from app.services.view_cache import ViewCache
from app.store import event_log, layers, log, sessions
from app.store.engine import Connection, Database
from app.store.event_log import StoredEvent
from app.store.sessions import SessionRow


class Turns:
    """The use cases of a session's turns."""

    def __init__(
        self, database: Database, counting: Counting, policies: Policies, view_cache: ViewCache, ingest: Ingest
    ) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._view_cache = view_cache
        self._ingest = ingest

    async def page(self, tenant_id: UUID, external_id: str, after: int, limit: int) -> list[Mapping[str, Any]]:
        """Up to `limit` turns after that number, in order. Raises NotFound."""
        row = await sessions.get(self._database, tenant_id, external_id)
        found = await event_log.turn_marks(self._database, row.log, after + 1, after + limit + 1, row.state.head)
        known = {turn: turn_of(marks) for turn, marks in found.items()}
        ends = {turn: known[turn + 1].from_seq - 1 if turn + 1 in known else row.state.head for turn in known}
        shown = [turn for turn in known if turn <= after + limit]
        seqs = {seq for turn in shown for seq in (known[turn].from_seq - 1, ends[turn])}
        through = {0: 0, **await event_log.tokens_by_seq(self._database, row.log, seqs)}
        return [
            {
                "turn": turn,
                "turn_id": known[turn].turn_id,
                "from_seq": known[turn].from_seq,
                "to_seq": ends[turn],
                "state": known[turn].state(running=turn == row.state.turns),
                "tokens": through[ends[turn]] - through[known[turn].from_seq - 1],
                "events": ends[turn] - known[turn].from_seq + 1,
            }
            for turn in shown
        ]

    async def end(
        self, tenant_id: UUID, external_id: str, turn_id: str | None, key: str | None, request_bytes: bytes
    ) -> Appended:
        """End the running turn: its announce goes into the log, then its end, and the layers are cleared.

        A turn that has ended already stays as it is. Raises NotFound, Conflict where no turn has begun or `turn_id`
        names another one, or IdempotencyConflict.
        """
        session_id = sessions.session_key(tenant_id, external_id)
        request = AppendRequest((), None, key, hashlib.sha256(b"turns/end " + request_bytes).digest())
        hint = await self._ingest.hint(tenant_id, session_id)
        policy = await self._policies.get(tenant_id, hint.policy)
        async with self._database.transaction() as tx:
            session = await sessions.get_locked(tx, tenant_id, external_id)
            state = session.state
            hint = replace(hint, estimator=session.estimator, log=session.log)
            if (before := await answered_before(tx, session_id, request)) is not None:
                return await self._again(tx, session, before, hint, policy)
            turn = await _running(tx, session, turn_id)
            if turn.ended:
                return await self._nothing(tx, tenant_id, session, request, turn, hint, policy)
            standing_now = await layers.current(tx, session_id)
            shown = standing([one.layer for one in standing_now], state.turns)
            drafts = [Draft(EventType.ANNOUNCE, content=one.content) for one in shown if one.kind == ANNOUNCE]
            drafts.append(Draft(EventType.TURN_END))
            drafts = [replace(draft, turn_id=turn.turn_id) for draft in drafts]
            counter = self._counting.session_counter(hint.estimator, hint.model)
            bodies, tokens = await self._counting.prepare(drafts, counter)
            batch = place(drafts, tokens, state.turn)
            applied = await self._ingest.apply(tx, tenant_id, session_id, request, state, batch, bodies, hint, policy)
            versions = [
                await layers.put(tx, session_id, tenant_id, one.layer.kind, None, tokens=0, turn=None)
                for one in standing_now
            ]
        answer = self._ingest.answer(external_id, session_id, batch, bodies, applied, hint, policy)
        if versions:
            self._view_cache.layered(session_id, versions[0] - 1, versions[-1], ())
        return Appended(answer | _ended(state.turns, turn.turn_id, answer["events"]), True)

    async def _again(
        self, tx: Connection, session: SessionRow, facts: Mapping[str, Any], hint: SessionSnapshot, policy: Policy
    ) -> Appended:
        """What the first of two equal requests was answered."""
        number = facts["turns"]
        stored = await event_log.stored(tx, session.log, facts["first"] - 1, facts["head"] - facts["first"] + 1)
        rows = [_row(session.session_id, one) for one in stored]
        marks = await event_log.turn_marks(tx, session.log, number, number)
        ended = _ended(number, turn_of(marks[number]).turn_id, rows)
        return Appended(self._facts(session.external_id, facts, hint, policy) | {"events": rows} | ended, False)

    async def _nothing(
        self,
        tx: Connection,
        tenant_id: UUID,
        session: SessionRow,
        request: AppendRequest,
        turn: Turn,
        hint: SessionSnapshot,
        policy: Policy,
    ) -> Appended:
        """The answer where the turn has ended before; repeated under its key it will be the same."""
        facts = as_appended(session, session.state.head, session.state.tokens)
        if request.key is not None:
            await log.remember(tx, session.session_id, tenant_id, request.key, request.request_sha256, facts)
        ended = _ended(session.state.turns, turn.turn_id, [])
        return Appended(self._facts(session.external_id, facts, hint, policy) | ended, False)

    def _facts(
        self, external_id: str, facts: Mapping[str, Any], hint: SessionSnapshot, policy: Policy
    ) -> dict[str, Json]:
        return {
            "session": external_id,
            "head": facts["head"],
            "epoch": facts["epoch"],
            "events": [],
            "pressure": pressure(facts["tokens"], facts["target"], policy, hint.model, self._counting),
        }


async def _running(tx: Connection, session: SessionRow, turn_id: str | None) -> Turn:
    """The last turn. Raises Conflict where there is none, or `turn_id` is another one's."""
    number = session.state.turns
    marks = (await event_log.turn_marks(tx, session.log, number, number)).get(number)
    if not marks:
        raise Conflict("no turn has begun in this session", turn=0)
    turn = turn_of(marks)
    if turn_id is not None and turn_id != turn.turn_id:
        raise Conflict(f"turn_id {turn_id!r} is not that of the last turn to begin", turn=number, turn_id=turn.turn_id)
    return turn


def _ended(turn: int, turn_id: str | None, rows: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """What an answer says of the turn: whether this request ended it, and the announce that went into the log."""
    announce = {"seq": rows[0]["seq"], "tokens": rows[0]["tokens"]} if len(rows) > 1 else None
    return {"turn": turn, "turn_id": turn_id, "ended": bool(rows), "announce": announce}


def _row(session_id: UUID, one: StoredEvent) -> dict[str, Json]:
    named = one.event_id or event_id(session_id, one.seq)
    return {"seq": one.seq, "id": named, "turn": one.turn, "tokens": one.tokens}
