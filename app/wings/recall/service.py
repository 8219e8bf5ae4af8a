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
    events, and the running turn's seqs, from which the query was made."""

    seqs: Sequence[int] = ()
    scores: Mapping[int, float] = field(default_factory=dict)
    matched: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    paths_without_events: tuple[str, ...] = ()
    current: frozenset[int] = frozenset()


class Recall:
    """Finds the originals of events."""

    def __init__(self, database: Database, counting: Counting, policies: Policies) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._indexing = Indexing(database)

    async def find(self, tenant_id: UUID, external_id: str, request: RecallIn) -> RecallOut:
        """Return the recalled events. Raises NotFound for an unknown session or call."""
        session = await sessions.get(self._database, tenant_id, external_id)
        call_id, seen = await self._find_seen_call(session, request.call_id)
        counter = self._counting.session_counter(session.estimator, session.model)
        found, unsearched = _Found(), 0
        if request.query or request.paths:
            unsearched = await self._index(session)
            found = await self._search(session, request)
        wanted = tuple(dict.fromkeys((*request.seqs, *found.seqs)))
        outline = await event_log.with_calls(self._database, session.log, wanted, bodies=False)
        verbatim = answer.verbatim_seqs(outline, seen, counter)
        chosen = _choose(request, found, outline, verbatim)
        events = await event_log.with_calls(self._database, session.log, chosen, bodies=True)
        by_seq = {event.seq: event for event in events}
        filled = await _fill([by_seq[seq] for seq in chosen], verbatim, found.weights, request, counter)
        missing = [RecallItem(seq=seq, missing=True) for seq in dict.fromkeys(request.seqs) if seq not in chosen]
        missing += [RecallItem(path=path, missing=True) for path in found.paths_without_events]
        return RecallOut(
            items=[*(_item(one, by_seq, found.scores) for one in filled.given), *missing],
            omitted=_count_omitted(frozenset(request.seqs), chosen, found.matched, filled),
            unsearched=unsearched or None,
            tokens=filled.tokens,
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
        """Index a session's segments, newest first, within a search's bound; return how many events are not indexed.

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

    async def _current(self, session: SessionRow) -> frozenset[int]:
        """Return the seqs of the running turn's user messages and of the calls without a result.

        A query made from them would find them first, although they answer nothing.
        """
        state = session.state
        marks = await event_log.turn_marks(self._database, session.log, state.turns, state.turns, state.head)
        user_seqs = {mark.seq for mark in marks.get(state.turns, ()) if mark.type is EventType.USER_MESSAGE}
        return frozenset(user_seqs | {call.seq for call in state.open_calls.values()})

    async def _search(self, session: SessionRow, request: RecallIn) -> _Found:
        log = session.log
        about: set[int] = set()
        without_events: tuple[str, ...] = ()
        most = LOOKED_AT + 4 * (request.limit or answer.LIMIT)
        for path in dict.fromkeys(request.paths):
            seqs = await store.seqs_with_terms(self._database, log, (path_term(path),))
            about |= seqs
            without_events += () if seqs else (path,)
        if request.query is None:
            return _Found(sorted(about, reverse=True)[:most], matched=len(about), paths_without_events=without_events)
        words = query_terms(request.query)
        if not words:
            return _Found(paths_without_events=without_events)
        matches = await store.find(self._database, log, words)
        current = await self._current(session)
        ranked = await asyncio.to_thread(rank, matches.hits, matches.corpus, current=current)
        matched = matches.matches
        if request.paths:
            ranked = [one for one in ranked if one.seq in about]
            matched = sum(hit.seq in about for hit in matches.hits)
        ranked = ranked[:most]
        known = await store.indexed_seqs(self._database, log, [one.seq for one in ranked])
        ranked = [one for one in ranked if one.seq in known]
        return _Found(
            [one.seq for one in ranked],
            {one.seq: one.score for one in ranked},
            matched,
            answer.weights_of(request.query, matches.corpus.holding),
            without_events,
            current,
        )


def _choose(request: RecallIn, found: _Found, outline: Sequence[Event], verbatim: frozenset[int]) -> list[int]:
    """Return the existing requested seqs, then the best of those found: verbatim ones and the running turn's last."""
    known_seqs = {event.seq for event in outline}
    direct = [seq for seq in dict.fromkeys(request.seqs) if seq in known_seqs]
    others = [seq for seq in found.seqs if seq in known_seqs and seq not in direct]
    picked = answer.pick(others, verbatim, request.limit or answer.LIMIT)
    if request.limit is None and request.query:
        sizes = {event.seq: event.tokens for event in outline if event.seq not in verbatim | found.current}
        picked += answer.short_ones(others, found.scores, sizes, [*direct, *picked], request.max_tokens)
    return direct + sorted(picked, key=lambda seq: (seq in found.current, seq in verbatim))


async def _fill(
    wanted: Sequence[Event], verbatim: frozenset[int], weights: Mapping[str, float], request: RecallIn, counter: Counter
) -> answer.RecallAnswer:
    without_content = frozenset(one.seq for one in wanted if one.seq in verbatim and not _is_redacted(one))
    fill = partial(answer.fill, wanted, without_content, weights, request.max_tokens, counter, request.offset)
    return await off_loop(fill, bytes_of(wanted))


def _count_omitted(requested: frozenset[int], chosen: Sequence[int], matched: int, filled: answer.RecallAnswer) -> int:
    """Count the requested and matching events that are not in the response."""
    given = {part.event.seq for part in filled.given}
    return len(requested.intersection(chosen) - given) + max(0, matched - len(given - requested))


def _is_redacted(event: Event) -> bool:
    return bool((event.body or {}).get("redacted"))


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

    def is_left(self) -> bool:
        """Return whether any more may be indexed."""
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
        """Index a session's own events `first` to `last`: those after the indexed range upwards, then those before it
        downwards, as far as is allowed (None: all). Return how many are left; None if there is no such session."""
        indexed = await store.indexed_range(self._database, ref.session_id)
        left = last - first + 1 if indexed is None else indexed.missing(first, last)
        if not left:
            return 0
        lock = self._locks.setdefault(ref.session_id, asyncio.Lock())
        async with lock:  # only one of the waiting tasks holds a connection
            while left and (allowance is None or allowance.is_left()):
                indexed = await self._batch(ref, first, last, allowance)
                if indexed is None:
                    return None
                left = indexed.missing(first, last)
        return left

    async def _batch(
        self, ref: SessionRef, first: int, last: int, allowance: Allowance | None
    ) -> store.IndexedRange | None:
        """Index one batch; return the seqs that are indexed, None if there is no such session."""
        most = Allowance(BATCH_EVENTS, BATCH_TOKENS) if allowance is None else allowance
        async with self._database.transaction() as tx:
            indexed = await store.lock(tx, ref, last)
            if indexed is None or not indexed.missing(first, last):
                return indexed
            events = await store.unindexed_events(
                tx, ref.session_id, indexed, first, last, min(BATCH_EVENTS, most.events), min(BATCH_TOKENS, most.tokens)
            )
            if not events:
                # A new, shorter session has the erased one's name. Report the range as covered: the caller stops.
                return store.IndexedRange(first, last)
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
