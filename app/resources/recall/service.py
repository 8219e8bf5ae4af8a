"""Recall: the originals of events that a context left out, by seq, by path, or by a query."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.errors import NotFound
from app.core.lexicon.times import from_seconds
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.recall import answer as recall
from app.core.recall.search import files, path_term, query_terms, rank
from app.core.tokens.counter import Counter
from app.resources.policies.service import Policies
from app.resources.recall.indexing import Indexing
from app.services.counting import OFF_LOOP_BYTES, Counting
from app.store import event_log, search, sessions
from app.store.engine import Database
from app.store.sessions import SessionRow

LOOKED_AT: Final = 200
"""Ranked hits, in addition to four times the limit, that are checked for events that are not visible."""


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """A request for events by `seqs`, by `paths` (newest first, or as ranked by `query`), or by `query`.

    `start` is the character from which to read the one event of `seqs`. A query without `limit` returns recall.LIMIT
    events, and more as long as they are short.
    """

    seqs: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    query: str | None = None
    limit: int | None = None
    max_tokens: int = recall.TOKENS
    call_id: UUID | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """Seqs in order of preference, their scores, the number of matches, the query's terms by weight, the paths without
    events, and the seqs of the question itself."""

    seqs: Sequence[int] = ()
    scores: Mapping[int, float] = field(default_factory=dict)
    matched: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    question: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RecalledEvent:
    """A recalled event, or (`missing`) a requested seq or path without one. None: the field has no value."""

    seq: int | None = None
    type: EventType | None = None
    turn: int | None = None
    occurred_at: datetime | None = None
    author: str | None = None
    tool: str | None = None
    path: str | None = None
    call_seq: int | None = None
    is_error: bool | None = None
    visible: bool = False
    tokens: int = 0
    score: float | None = None
    snippet: str | None = None
    content: str | None = None
    truncated: bool | None = None
    offset: int | None = None
    next_offset: int | None = None
    redacted: bool | None = None
    missing: bool | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """The recalled events; `omitted` matches did not fit. Visibility is judged by the context of call `call_id`."""

    items: tuple[RecalledEvent, ...]
    omitted: int
    tokens: int
    call_id: str | None


class Recall:
    """Finds the originals of events."""

    def __init__(self, database: Database, counting: Counting, policies: Policies) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._indexing = Indexing(database)

    async def find(self, tenant_id: UUID, external_id: str, asked: RecallRequest) -> Recalled:
        """Return the recalled events. Raises NotFound for an unknown session or call."""
        session = await sessions.get(self._database, tenant_id, external_id)
        call_id, seen = await self._visible_in(session, tenant_id, asked.call_id)
        counter = self._counting.session_counter(session.estimator, session.model)
        found = _Found()
        if asked.query or asked.paths:
            await self._index(session, tenant_id)
            found = await self._search(session, asked)
        wanted = tuple(dict.fromkeys((*asked.seqs, *found.seqs)))
        outline = await event_log.with_calls(self._database, session.log, wanted, bodies=False)
        shown = recall.visible(outline, seen, counter)
        known_seqs = {event.seq for event in outline}
        direct = [seq for seq in dict.fromkeys(asked.seqs) if seq in known_seqs]
        others = [seq for seq in found.seqs if seq in known_seqs and seq not in direct]
        picked = recall.pick(others, shown, asked.limit or recall.LIMIT)
        if asked.limit is None and asked.query:
            sizes = {event.seq: event.tokens for event in outline if event.seq not in shown | found.question}
            taken = [*direct, *picked]
            picked += recall.short_ones(others, found.scores, sizes, taken, asked.max_tokens)
        chosen = direct + sorted(picked, key=lambda seq: (seq in found.question, seq in shown))
        events = await event_log.with_calls(self._database, session.log, chosen, bodies=True)
        bounded, items = await self._give(events, chosen, shown, found, asked, counter)
        missing = [RecalledEvent(seq=seq, missing=True) for seq in dict.fromkeys(asked.seqs) if seq not in known_seqs]
        missing += [RecalledEvent(path=path, missing=True) for path in found.without]
        reported = sum(one.event.seq not in direct for one in bounded.given)
        lost_direct = len(direct) - (len(bounded.given) - reported)
        omitted = max(0, found.matched - reported) + lost_direct
        return Recalled((*items, *missing), omitted, bounded.tokens, None if call_id is None else str(call_id))

    async def _visible_in(
        self, session: SessionRow, tenant_id: UUID, call_id: UUID | None
    ) -> tuple[UUID | None, recall.SeenCall]:
        call = await search.call(self._database, session.session_id, tenant_id, call_id)
        if call is None:
            if call_id is not None:
                detail = f"session {session.external_id!r} has no call {call_id}"
                raise NotFound(detail, session=session.external_id, call_id=str(call_id))
            return None, recall.SeenCall()
        policy = await self._policies.get(tenant_id, call.policy)
        return call.call_id, recall.SeenCall(call.head, call.frontier, policy.shows)

    async def _index(self, session: SessionRow, tenant_id: UUID) -> None:
        """Index a session up to its head. Raises NotFound if it is erased meanwhile."""
        for part in await event_log.owners(self._database, session.log, session.state.head):
            if not await self._indexing.index_to(part.session_id, tenant_id, part.to_seq):
                raise NotFound(f"there is no session {session.external_id!r}", session=session.external_id)

    async def _question(self, session: SessionRow) -> frozenset[int]:
        """Return the seqs of the running turn's user messages and of the calls without a result.

        A query made from them would find them first, although they answer nothing.
        """
        state = session.state
        marks = await event_log.turn_marks(self._database, session.log, state.turns, state.turns, state.head)
        asked = {mark.seq for mark in marks.get(state.turns, ()) if mark.type is EventType.USER_MESSAGE}
        return frozenset(asked | {call.seq for call in state.open_calls.values()})

    async def _search(self, session: SessionRow, asked: RecallRequest) -> _Found:
        log = session.log
        about: set[int] = set()
        without = []
        most = LOOKED_AT + 4 * (asked.limit or recall.LIMIT)
        for path in dict.fromkeys(asked.paths):
            seqs = await search.seqs_with_terms(self._database, log, (path_term(path),))
            about |= seqs
            without += [] if seqs else [path]
        if asked.query is None:
            return _Found(sorted(about, reverse=True)[:most], matched=len(about), without=tuple(without))
        words = query_terms(asked.query)
        if not words:
            return _Found(without=tuple(without))
        matches = await search.find(self._database, log, words)
        question = await self._question(session)
        ranked = await asyncio.to_thread(rank, matches.hits, matches.corpus, question=question)
        matched = matches.matches
        if asked.paths:
            ranked = [one for one in ranked if one.seq in about]
            matched = sum(hit.seq in about for hit in matches.hits)
        ranked = ranked[:most]
        known = await search.indexed_seqs(self._database, log, [one.seq for one in ranked])
        ranked = [one for one in ranked if one.seq in known]
        return _Found(
            [one.seq for one in ranked],
            {one.seq: one.score for one in ranked},
            matched,
            recall.weights_of(asked.query, matches.corpus.holding),
            tuple(without),
            question,
        )

    async def _give(
        self,
        events: Sequence[Event],
        chosen: Sequence[int],
        shown: frozenset[int],
        found: _Found,
        asked: RecallRequest,
        counter: Counter,
    ) -> tuple[recall.RecallAnswer, list[RecalledEvent]]:
        by_seq = {event.seq: event for event in events}
        wanted = [by_seq[seq] for seq in chosen]
        bare = frozenset(seq for seq in shown if not _redacted(by_seq.get(seq)))

        def give() -> recall.RecallAnswer:
            return recall.fill(wanted, bare, found.weights, asked.max_tokens, counter, asked.start)

        large = sum(event.tokens for event in wanted) > OFF_LOOP_BYTES // 4
        bounded = await asyncio.to_thread(give) if large else give()
        return bounded, [_item(one, by_seq, found.scores) for one in bounded.given]


def _redacted(event: Event | None) -> bool:
    return event is not None and bool((event.body or {}).get("redacted"))


def _item(given: recall.RecallPart, events: Mapping[int, Event], scores: Mapping[int, float]) -> RecalledEvent:
    event = given.event
    call = events.get(event.call_seq or 0)
    about = files(event) or (files(call) if call is not None else ())
    score = scores.get(event.seq)
    cut = given.content is not None and (given.start > 0 or given.end is not None)
    return RecalledEvent(
        seq=event.seq,
        type=event.type,
        turn=event.turn,
        occurred_at=from_seconds(event.at).replace(microsecond=0),
        author=event.author,
        tool=event.tool,
        path=about[0] if about else None,
        call_seq=event.call_seq,
        is_error=True if event.is_error else None,
        visible=given.visible,
        tokens=event.tokens,
        score=None if score is None else round(score, 4),
        snippet=given.snippet,
        content=given.content,
        truncated=True if cut else None,
        offset=given.start if cut else None,
        next_offset=given.end,
        redacted=True if _redacted(event) else None,
    )
