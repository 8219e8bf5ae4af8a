"""Recall: the originals of events that a context left out, by seq, by path, or by a query."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from app.core.errors import NotFound
from app.core.lexicon.times import from_seconds
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.counter import Counter
from app.http.fields import answer_of
from app.resources.policies.service import Policies
from app.store import event_log, jobs, sessions
from app.store.engine import Database
from app.store.ids import SessionRef
from app.store.sessions import SessionRow
from app.tokenizers import Counting, bytes_of, off_loop
from app.wings.recall import answer, store
from app.wings.recall.schemas import RecallIn, RecallItem, RecallOut
from app.wings.recall.search import IndexEntry, entry, files, path_term, query_terms, rank

BATCH_EVENTS: Final = 200
BATCH_TOKENS: Final = 50_000
"""Most events and tokens indexed in one transaction, which bounds how long a redaction waits."""
SEARCH_EVENTS: Final = 5_000
SEARCH_TOKENS: Final = 1_000_000
"""Most events and tokens that a search indexes before it answers. A worker indexes the rest."""
LOOKED_AT: Final = 200
"""Ranked hits, in addition to four times the limit, that are checked for events that are not visible."""


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


class Recall:
    """Finds the originals of events."""

    def __init__(self, database: Database, counting: Counting, policies: Policies) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._indexing = Indexing(database)

    async def find(self, tenant_id: UUID, external_id: str, asked: RecallIn) -> RecallOut:
        """Return the recalled events. Raises NotFound for an unknown session or call."""
        session = await sessions.get(self._database, tenant_id, external_id)
        call_id, seen = await self._find_seen_call(session, asked.call_id)
        counter = self._counting.session_counter(session.estimator, session.model)
        found, unsearched = _Found(), 0
        if asked.query or asked.paths:
            unsearched = await self._index(session)
            found = await self._search(session, asked)
        wanted = tuple(dict.fromkeys((*asked.seqs, *found.seqs)))
        outline = await event_log.with_calls(self._database, session.log, wanted, bodies=False)
        shown = answer.visible(outline, seen, counter)
        known_seqs = {event.seq for event in outline}
        direct = [seq for seq in dict.fromkeys(asked.seqs) if seq in known_seqs]
        others = [seq for seq in found.seqs if seq in known_seqs and seq not in direct]
        picked = answer.pick(others, shown, asked.limit or answer.LIMIT)
        if asked.limit is None and asked.query:
            sizes = {event.seq: event.tokens for event in outline if event.seq not in shown | found.question}
            taken = [*direct, *picked]
            picked += answer.short_ones(others, found.scores, sizes, taken, asked.max_tokens)
        chosen = direct + sorted(picked, key=lambda seq: (seq in found.question, seq in shown))
        events = await event_log.with_calls(self._database, session.log, chosen, bodies=True)
        bounded, items = await self._give(events, chosen, shown, found, asked, counter)
        missing = [RecallItem(seq=seq, missing=True) for seq in dict.fromkeys(asked.seqs) if seq not in known_seqs]
        missing += [RecallItem(path=path, missing=True) for path in found.without]
        reported = sum(one.event.seq not in direct for one in bounded.given)
        lost_direct = len(direct) - (len(bounded.given) - reported)
        omitted = max(0, found.matched - reported) + lost_direct
        return RecallOut(
            items=[*items, *missing],
            omitted=omitted,
            unsearched=unsearched or None,
            tokens=bounded.tokens,
            call_id=call_id,
        )

    async def _find_seen_call(self, session: SessionRow, call_id: UUID | None) -> tuple[UUID | None, answer.SeenCall]:
        call = await store.call(self._database, session.ref, call_id)
        if call is None:
            if call_id is not None:
                detail = f"session {session.external_id!r} has no call {call_id}"
                raise NotFound(detail, session=session.external_id, call_id=str(call_id))
            return None, answer.SeenCall()
        policy = await self._policies.get(session.tenant_id, call.policy)
        return call.call_id, answer.SeenCall(call.head, call.frontier, policy.shows)

    async def _index(self, session: SessionRow) -> int:
        """Index a session from its head down, within the bound of a search; return how many events are not indexed.

        A worker indexes these. Raises NotFound if the session is erased meanwhile.
        """
        allowance = Allowance(SEARCH_EVENTS, SEARCH_TOKENS)
        unsearched = 0
        for part in reversed(await event_log.segments(self._database, session.log, session.state.head)):
            ref = SessionRef(part.session_id, session.tenant_id)
            left = await self._indexing.index(ref, part.from_seq, part.to_seq, allowance)
            if left is None:
                raise NotFound(f"there is no session {session.external_id!r}", session=session.external_id)
            if left:
                payload = f"{ref.session_id} {ref.tenant_id} {part.from_seq} {part.to_seq}"
                await jobs.enqueue(self._database, "index", ref.session_id, payload)
            unsearched += left
        return unsearched

    async def _question(self, session: SessionRow) -> frozenset[int]:
        """Return the seqs of the running turn's user messages and of the calls without a result.

        A query made from them would find them first, although they answer nothing.
        """
        state = session.state
        marks = await event_log.turn_marks(self._database, session.log, state.turns, state.turns, state.head)
        asked = {mark.seq for mark in marks.get(state.turns, ()) if mark.type is EventType.USER_MESSAGE}
        return frozenset(asked | {call.seq for call in state.open_calls.values()})

    async def _search(self, session: SessionRow, asked: RecallIn) -> _Found:
        log = session.log
        about: set[int] = set()
        without = []
        most = LOOKED_AT + 4 * (asked.limit or answer.LIMIT)
        for path in dict.fromkeys(asked.paths):
            seqs = await store.seqs_with_terms(self._database, log, (path_term(path),))
            about |= seqs
            without += [] if seqs else [path]
        if asked.query is None:
            return _Found(sorted(about, reverse=True)[:most], matched=len(about), without=tuple(without))
        words = query_terms(asked.query)
        if not words:
            return _Found(without=tuple(without))
        matches = await store.find(self._database, log, words)
        question = await self._question(session)
        ranked = await asyncio.to_thread(rank, matches.hits, matches.corpus, question=question)
        matched = matches.matches
        if asked.paths:
            ranked = [one for one in ranked if one.seq in about]
            matched = sum(hit.seq in about for hit in matches.hits)
        ranked = ranked[:most]
        known = await store.indexed_seqs(self._database, log, [one.seq for one in ranked])
        ranked = [one for one in ranked if one.seq in known]
        return _Found(
            [one.seq for one in ranked],
            {one.seq: one.score for one in ranked},
            matched,
            answer.weights_of(asked.query, matches.corpus.holding),
            tuple(without),
            question,
        )

    async def _give(
        self,
        events: Sequence[Event],
        chosen: Sequence[int],
        shown: frozenset[int],
        found: _Found,
        asked: RecallIn,
        counter: Counter,
    ) -> tuple[answer.RecallAnswer, list[RecallItem]]:
        by_seq = {event.seq: event for event in events}
        wanted = [by_seq[seq] for seq in chosen]
        bare = frozenset(seq for seq in shown if not _is_redacted(by_seq.get(seq)))
        fill = partial(answer.fill, wanted, bare, found.weights, asked.max_tokens, counter, asked.offset)
        bounded = await off_loop(fill, bytes_of(wanted))
        return bounded, [_item(one, by_seq, found.scores) for one in bounded.given]


def _is_redacted(event: Event | None) -> bool:
    return event is not None and bool((event.body or {}).get("redacted"))


def _item(given: answer.RecallPart, events: Mapping[int, Event], scores: Mapping[int, float]) -> RecallItem:
    event = given.event
    call = events.get(event.call_seq or 0)
    about = files(event) or (files(call) if call is not None else ())
    score = scores.get(event.seq)
    cut = given.content is not None and (given.start > 0 or given.end is not None)
    return answer_of(
        RecallItem,
        given,
        event,
        occurred_at=from_seconds(event.at).replace(microsecond=0),
        path=about[0] if about else None,
        is_error=True if event.is_error else None,
        score=None if score is None else round(score, 4),
        truncated=True if cut else None,
        offset=given.start if cut else None,
        next_offset=given.end,
        redacted=True if _is_redacted(event) else None,
    )


@dataclass(slots=True)
class Allowance:
    """The events and tokens that may still be indexed; the last event may exceed the tokens."""

    events: int
    tokens: int

    def __bool__(self) -> bool:
        return self.events > 0 and self.tokens > 0


class Indexing:
    """Indexes sessions for search. Concurrent requests for one session index it once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def update(self, ref: SessionRef, head: int | None) -> None:
        """Index the new events up to `head` of a session that was searched before."""
        indexed = None if head is None else await store.indexed_range(self._database, ref.session_id)
        if head is not None and indexed is not None:
            await self.index(ref, indexed.start, head)

    async def index(self, ref: SessionRef, first: int, last: int, allowance: Allowance | None = None) -> int | None:
        """Index a session's own events `first` to `last`, newer ones before older ones, as far as is allowed (None: all
        of them). Return how many are not indexed; None if there is no such session."""
        indexed = await store.indexed_range(self._database, ref.session_id)
        left = last - first + 1 if indexed is None else indexed.missing(first, last)
        if not left:
            return 0
        lock = self._locks.setdefault(ref.session_id, asyncio.Lock())
        async with lock:  # only one of the waiting tasks holds a connection
            while left and (allowance is None or allowance):
                indexed = await self._batch(ref, first, last, allowance)
                if indexed is None:
                    return None
                left = indexed.missing(first, last)
        return left

    async def _batch(
        self, ref: SessionRef, first: int, last: int, allowance: Allowance | None
    ) -> store.IndexedRange | None:
        """Index one batch; return the seqs that are indexed, None if there is no such session."""
        most = allowance or Allowance(BATCH_EVENTS, BATCH_TOKENS)
        async with self._database.transaction() as tx:
            indexed = await store.lock(tx, ref, last)
            if indexed is None or not indexed.missing(first, last):
                return indexed
            events = await store.unindexed_events(
                tx, ref.session_id, indexed, first, last, min(BATCH_EVENTS, most.events), min(BATCH_TOKENS, most.tokens)
            )
            if not events:
                return store.IndexedRange(first, last)  # the session was erased, and a shorter one has its name
            entries = await asyncio.to_thread(_entries, events)
            seqs = [event.seq for event in events]
            indexed = store.IndexedRange(min(indexed.start, *seqs), max(indexed.head, *seqs))
            await store.add(tx, ref, entries, indexed)
        if allowance is not None:
            allowance.events -= len(events)
            allowance.tokens -= sum(event.tokens for event in events)
        return indexed


def _entries(events: Sequence[Event]) -> list[IndexEntry]:
    return [found for found in map(entry, events) if found is not None]
