"""Turns: list them, and end the running one."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Body, Depends, Response
from pydantic import BaseModel, Field

from app.core import dataclass, replace
from app.core.errors import Conflict
from app.core.log.appends import Turn, place, turn_of
from app.core.log.events import ANNOUNCE, Draft, EventType
from app.core.policy.policy import Policy
from app.core.render.layers import visible_layers
from app.http import paging
from app.http.fields import Cursor, Limit, Sid, StrictRequest
from app.http.operation import Key, Resource, Who, service
from app.resources.contexts.view_cache import ViewCache
from app.resources.events.appends import (
    Appended,
    AppendFacts,
    AppendRequest,
    EventReceipt,
    SessionSnapshot,
    find_original,
    measure_pressure,
    receipt,
)
from app.resources.events.schemas import LoggedEvent, LogGrown
from app.resources.events.service import Ingest, PreparedAppend
from app.resources.policies.service import Policies
from app.resources.sessions.service import EventRates
from app.store import answers, event_log, layers, sessions
from app.store.engine import Connection, Database
from app.store.ids import session_ref
from app.store.sessions import SessionRow
from app.tokenizers import Counting


class TurnOut(BaseModel):
    """A turn: a user's message and everything up to the next one."""

    turn: int = Field(description="Number of the turn, counted from 1.")
    turn_id: str | None = Field(description="Client's own name of the turn; null if it gave none.")
    from_seq: int = Field(description="Seq of the turn's first event.")
    to_seq: int = Field(description="Seq of the turn's last event; for the last turn, the head.")
    state: Literal["running", "ended", "interrupted"] = Field(
        description="State of the turn: `running` (the last turn, not ended yet), `ended` (by a `turn.end`, or by the "
        "next turn) or `interrupted` (begun by a `turn.start`, and the next turn began before its `turn.end`)."
    )
    tokens: int = Field(description="Size of all events of the turn as logged, in tokens by the session's estimator.")
    events: int = Field(description="Number of events in the turn.")


@dataclass(frozen=True, slots=True)
class TurnEnded(Appended):
    """The result of ending a turn, with the event of its announcement if it had one."""

    turn: int = 0
    turn_id: str | None = None

    @property
    def ended(self) -> bool:
        """Whether this request ended the turn."""
        return bool(self.events)

    @property
    def announce(self) -> EventReceipt | None:
        """The event of the announcement; None without one."""
        return self.events[0] if len(self.events) > 1 else None


@dataclass(eq=False)
class Turns:
    """Lists and ends turns."""

    _database: Database
    _counting: Counting
    _policies: Policies
    _view_cache: ViewCache
    _ingest: Ingest

    async def page(self, tenant_id: UUID, address: str, after: int, limit: int) -> list[TurnOut]:
        """Return up to `limit` turns after number `after`, in order. Raises NotFound."""
        row = await sessions.get(self._database, tenant_id, address)
        found = await event_log.turn_marks(self._database, row.log, after + 1, after + limit + 1, row.state.head)
        known = {turn: turn_of(marks) for turn, marks in found.items()}
        ends = {turn: known[turn + 1].from_seq - 1 if turn + 1 in known else row.state.head for turn in known}
        shown = [turn for turn in known if turn <= after + limit]
        seqs = {seq for turn in shown for seq in (known[turn].from_seq - 1, ends[turn])}
        through = {0: 0, **await event_log.tokens_by_seq(self._database, row.log, seqs)}
        return [
            TurnOut(
                turn=turn,
                turn_id=known[turn].turn_id,
                from_seq=known[turn].from_seq,
                to_seq=ends[turn],
                state=known[turn].state(running=turn == row.state.turns),
                tokens=through[ends[turn]] - through[known[turn].from_seq - 1],
                events=ends[turn] - known[turn].from_seq + 1,
            )
            for turn in shown
        ]

    async def end(
        self, tenant_id: UUID, address: str, turn_id: str | None, key: str | None, request_bytes: bytes
    ) -> TurnEnded:
        """End the running turn: append its announcement and its end, and clear the layers.

        A turn that has ended stays as it is. Raises NotFound, IdempotencyConflict, or Conflict if no turn has begun or
        `turn_id` names another one.
        """
        ref = session_ref(tenant_id, address)
        request = AppendRequest((), None, key, hashlib.sha256(b"turns/end " + request_bytes).digest())
        async with self._database.transaction() as tx:
            session = await sessions.get_locked(tx, tenant_id, address)
            state, hint = session.state, SessionSnapshot.of(session)
            policy = await self._policies.get(tenant_id, session.policy, tx)
            if (before := await find_original(tx, ref.session_id, request)) is not None:
                return await self._original_answer(tx, session, before, policy)
            turn = await _last_turn(tx, session, turn_id)
            if turn.ended:
                return await self._already_ended(tx, session, request, turn, policy)
            current_layers = await layers.current(tx, ref.session_id)
            shown = visible_layers([one.layer for one in current_layers], state.turns)
            drafts = [Draft(EventType.ANNOUNCE, content=one.content) for one in shown if one.kind == ANNOUNCE]
            drafts.append(Draft(EventType.TURN_END))
            drafts = [replace(draft, turn_id=turn.turn_id) for draft in drafts]
            counter = self._counting.session_counter(hint.estimator, hint.model)
            bodies, tokens = await self._counting.prepare(drafts, counter)
            batch = place(drafts, tokens, state.turn)
            prepared = PreparedAppend(session.external_id, ref, request, hint, policy, bodies, tokens)
            appending = await self._ingest.apply(tx, prepared, batch)
            versions = [await layers.put(tx, ref, one.layer.kind, None, tokens=0, turn=None) for one in current_layers]
        answer = self._ingest.finish(appending)
        if versions:
            self._view_cache.set_layers(ref.session_id, versions[0] - 1, versions[-1], ())
        appended = (answer.session, answer.head, answer.epoch, answer.events, answer.pressure)
        return TurnEnded(*appended, turn=state.turns, turn_id=turn.turn_id)

    async def _original_answer(
        self, tx: Connection, session: SessionRow, facts: AppendFacts, policy: Policy
    ) -> TurnEnded:
        stored = await event_log.stored(tx, session.log, facts.first - 1, facts.head - facts.first + 1)
        marks = await event_log.turn_marks(tx, session.log, facts.turns, facts.turns)
        rows = [receipt(session.session_id, one) for one in stored]
        return self._turn_ended(session, facts, rows, turn_of(marks[facts.turns]).turn_id, policy)

    async def _already_ended(
        self, tx: Connection, session: SessionRow, request: AppendRequest, turn: Turn, policy: Policy
    ) -> TurnEnded:
        """Return the response for a turn that has already ended, and store it for repetitions under its key."""
        facts = AppendFacts.without_new_events(session, session.state.head, session.state.tokens)
        if request.key is not None:
            await answers.store(tx, session.ref, request.key, request.request_sha256, asdict(facts))
        return self._turn_ended(session, facts, (), turn.turn_id, policy)

    def _turn_ended(
        self, session: SessionRow, facts: AppendFacts, rows: Sequence[EventReceipt], turn_id: str | None, policy: Policy
    ) -> TurnEnded:
        level = measure_pressure(facts.tokens, facts.target, policy, session.model, self._counting)
        appended = (session.external_id, facts.head, facts.epoch, tuple(rows), level)
        return TurnEnded(*appended, created=False, turn=facts.turns, turn_id=turn_id)


async def _last_turn(tx: Connection, session: SessionRow, turn_id: str | None) -> Turn:
    """Return the last turn. Raises Conflict when there is none, or `turn_id` is another turn's."""
    number = session.state.turns
    marks = (await event_log.turn_marks(tx, session.log, number, number)).get(number)
    if not marks:
        raise Conflict("no turn has begun in this session", turn=0)
    turn = turn_of(marks)
    if turn_id is not None and turn_id != turn.turn_id:
        raise Conflict(f"turn_id {turn_id!r} is not that of the last turn", turn=number, turn_id=turn.turn_id)
    return turn


TurnPage = paging.page_of(
    TurnOut, "A page of a session's turns. Events before the first turn belong to no turn.", "Turns in order."
)


class TurnEndIn(StrictRequest):
    """Request to end the running turn."""

    turn_id: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Client's own name of the turn to end; if the last turn has a different one, the error is "
        "`conflict`. Default: the last turn, whatever its name.",
    )


class AnnounceRef(BaseModel):
    """An announcement that was appended to the log."""

    seq: int = Field(description="Seq of the `announce` event.")
    tokens: int = Field(description="Size of the event as appended, in tokens by the session's estimator.")


class TurnEndedOut(LogGrown):
    """Result of ending a turn, with the events that were appended for it."""

    events: list[LoggedEvent] = Field(description="Events that ended the turn, in the order of the log.")
    turn: int = Field(description="Number of the turn.")
    turn_id: str | None = Field(description="Client's own name of the turn; null if it gave none.")
    ended: bool = Field(
        description="Whether this request ended the turn; false if it had already ended and nothing was appended."
    )
    announce: AnnounceRef | None = Field(
        description="Event made of the content of the layer `announce`; null if the layer was empty."
    )


router = Resource("turns")

Service = Annotated[Turns, Depends(service(Turns))]


@router.operation("GET", "/v1/sessions/{sid}/turns", scope="read", returns=TurnPage)
async def list_turns(
    sid: Sid, who: Who, turns: Service, limit: Limit = 100, cursor: Cursor = None
) -> Mapping[str, Any]:
    """List the turns of a session in order, each with its range of seqs and its state."""
    after = paging.decode_number(cursor, below=2**31 - 1001)
    rows = await turns.page(who.tenant_id, sid, after or 0, limit + 1)
    return paging.page(rows, limit, lambda row: row.turn)


@router.operation(
    "POST",
    "/v1/sessions/{sid}/turns/end",
    scope="ingest",
    returns=TurnEndedOut,
    status=201,
    also=(200,),
    problems=("conflict", "idempotency-conflict", "too-many-events"),
)
async def end_turn(
    sid: Sid,
    body: Annotated[TurnEndIn, Body(default_factory=TurnEndIn)],
    response: Response,
    who: Who,
    turns: Service,
    rates: Annotated[EventRates, Depends(service(EventRates))],
    key: Key = None,
) -> TurnEnded:
    """End the running turn: its announcement is appended to the log, its layers are cleared, and compaction may begin.

    200 if the turn had already ended, or if the same request was sent before.
    """
    rates.take(who.tenant_id, 1)
    done = await turns.end(who.tenant_id, sid, body.turn_id, key, body.model_dump_json().encode())
    response.status_code = 201 if done.created else 200
    return done
