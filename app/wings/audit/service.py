"""Recorded calls: listed, explained and compared, with the moments in which they were made."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from app.core.audit.call_blocks import CallBlock, call_blocks
from app.core.audit.declined import Declined, PlannedMoment, declined
from app.core.audit.moment import RecordedMoment, planned_moment
from app.core.errors import ContextError, NotFound, NotReproducible
from app.core.lexicon.times import from_seconds
from app.core.log.event import Event
from app.core.log.segments import is_line
from app.core.memory.cover import cover_id
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.policy.policy import Policy
from app.core.record import NO_COUNT, ReplayedCall
from app.core.record.evictions import disposition_runs, dispositions
from app.core.render.formats import FORMATS
from app.core.tokens.models import CacheProfile, cache_profile
from app.resources.contexts.recordings import Recordings, Reproduced
from app.resources.policies.service import Policies
from app.store import audit, event_log, lines, sessions
from app.store.audit import CallRow, StoredEpoch
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef, first_id, session_key, session_ref
from app.tokenizers import Counting
from app.wings.audit import answers
from app.wings.audit.schemas import DiffOut, HistoryItem, Manifest

_DECIDED: Final = """
SELECT DISTINCT ON (seq, action IN ('pin', 'unpin')) seq, action FROM visibility
WHERE session_id = :session_id AND created_at <= :before
ORDER BY seq, action IN ('pin', 'unpin'), decision DESC, action
"""
_FOLDABLE: Final = """
SELECT EXISTS (SELECT FROM summaries WHERE session_id = :session_id AND cover_id = :cover_id AND created_at <= :before
               AND to_seq <= :head AND to_seq > :folded_to) AS foldable
"""


@dataclass(eq=False)
class Moments:
    """Loads the moments of recorded calls. `caches` are the profiles of providers' caches by model."""

    _database: Database
    _policies: Policies
    _counting: Counting
    _caches: Mapping[str, CacheProfile]

    async def of_call(self, tenant_id: UUID, external_id: str, done: Reproduced) -> PlannedMoment | None:
        """Return the moment of a call; None if it is unknown: of an early record, a retry, or a call with erased
        events."""
        call, ref = done.call, session_ref(tenant_id, external_id)
        if call.manifest.moment is None or call.retry_of is not None or not done.is_exact:
            return None
        policy = await self._policies.get(tenant_id, call.policy)
        session = await sessions.get(self._database, tenant_id, external_id)
        own = self._counting.session_counter(session.estimator, session.model)
        counter = self._counting.counter(call.model, policy)
        if call.manifest.estimator not in (counter.estimator.name, own.estimator.name):
            return None  # the estimator of the call is not known here any more
        shown = done.replayed.context
        events = (*(item.event for item in shown.items), *shown.prefix)
        if counter != own:
            events = await self._counting.recount(events, counter)
        facts = await self._facts(ref, call, done.epoch, policy)
        by_seq = {event.seq: event for event in events}
        derive = partial(planned_moment, done.replayed, by_seq, done.epoch.frontier, call, facts, counter)
        try:
            return await asyncio.to_thread(derive)
        except ContextError:
            return None  # the server's settings no longer allow such a budget

    async def _facts(self, ref: SessionRef, call: CallRow, epoch: StoredEpoch, policy: Policy) -> RecordedMoment:
        """Return the facts of a call; it opened its epoch if both were stored at the same time."""
        opened, before, state = epoch.created_at == call.created_at, START, epoch.frontier
        if opened:
            place = (epoch.head, epoch.epoch)
            found = await audit.epochs_before(self._database, ref.session_id, call.view, place, 1)
            before = found[0].frontier if found else START
        decided = await self._database.fetch(_DECIDED, session_id=ref.session_id, before=call.created_at)
        row = await self._database.fetchrow(
            _FOLDABLE,
            session_id=ref.session_id,
            cover_id=cover_id(ref.session_id, policy.shows),
            before=call.created_at,
            head=call.head,
            folded_to=state.folded_to,
        )
        return RecordedMoment(
            policy=policy,
            cache=cache_profile(call.model, policy.cache, self._caches, FORMATS[call.format].cache),
            cause=epoch.cause if opened else None,
            before=before if opened else None,
            foldable=bool(row and row["foldable"]),
            shown_again=frozenset(one["seq"] for one in decided if one["action"] == "show"),
            pins={one["seq"]: one["action"] == "pin" for one in decided if one["action"] in ("pin", "unpin")},
        )


EPOCHS_AT_ONCE: Final = 16
RESETTING_CAUSES: Final = ("start", "policy")
"""Causes of epochs that may change which authors and types a view shows."""
SUMMARIES: Final = -1
NOTE: Final = -2
"""Keys, next to the seqs of events, for the other content that an epoch decides on."""


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """A call to compare: recorded, or planned but not made."""

    call: CallRow
    epoch: StoredEpoch
    policy: Policy
    replayed: ReplayedCall


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two compared calls, with the fate of every event in it."""

    call: CallRow
    epoch: StoredEpoch
    policy: Policy
    fates: Mapping[int, answers.EventFate]


class Audit:
    """Lists, explains and compares recorded calls."""

    def __init__(self, database: Database, policies: Policies, recordings: Recordings, moments: Moments) -> None:
        self._database = database
        self._policies = policies
        self._recordings = recordings
        self._moments = moments

    async def page(
        self, tenant_id: UUID, external_id: str, *, view: str | None, before: UUID | None, limit: int
    ) -> list[tuple[str, CallRow]]:
        """Return the calls of a line, or of all lines of a session, newest first, each with the name of its line's row.

        Raises NotFound for an unknown session.
        """
        names = {session_key(tenant_id, external_id): external_id}
        if not is_line(external_id):
            names = await lines.names(self._database, tenant_id, external_id)
        calls = await audit.page(self._database, names, tenant_id, view=view, before=before, limit=limit)
        if not calls:
            await sessions.get(self._database, tenant_id, external_id)
        return [(names[session_id], call) for session_id, call in calls]

    async def explain(
        self,
        tenant_id: UUID,
        external_id: str,
        call_id: UUID,
        *,
        with_dispositions: bool = True,
        with_declined: bool = True,
    ) -> Manifest:
        """Return the complete record of a call. Raises NotFound, or NotReproducible."""
        call = await self._recordings.find(tenant_id, external_id, call_id)
        ref = session_ref(tenant_id, external_id)
        epoch = await self._recordings.epoch(ref.session_id, call)
        fates = await self._dispositions(ref, call, epoch.frontier) if with_dispositions else {}
        later = (await audit.erased_seqs(self._database, ref.session_id))[call.manifest.redactions :]
        runs = disposition_runs(fates, epoch.frontier.folds)
        asked = await self._declined(tenant_id, external_id, call) if with_declined else None
        return answers.manifest(external_id, call, epoch, runs, [seq for seq in later if seq <= call.head], asked)

    async def _declined(self, tenant_id: UUID, external_id: str, call: CallRow) -> tuple[Declined, ...] | None:
        """Return the reducers that evicted nothing for a call; None if that is not known."""
        if call.manifest.moment is None:
            return None
        try:
            done = await self._recordings.reproduce(tenant_id, external_id, call)
        except NotReproducible:
            return None
        at = await self._moments.of_call(tenant_id, external_id, done)
        return None if at is None else await asyncio.to_thread(declined, at)

    async def _dispositions(self, ref: SessionRef, call: CallRow, state: Frontier) -> dict[int, str]:
        """Return the disposition of every event up to the call's head, by seq (I4)."""
        policy = await self._policies.get(ref.tenant_id, call.policy)
        events = await event_log.events_without_bodies(self._database, SessionLog(ref.session_id), call.head)
        erased = (await audit.erased_seqs(self._database, ref.session_id))[: call.manifest.redactions]
        shown = partial(project, events, state, NO_COUNT, turn=0, shows=policy.shows)
        return await asyncio.to_thread(lambda: dispositions(events, shown(), state, erased))

    async def blocks(self, tenant_id: UUID, external_id: str, call_id: UUID) -> Sequence[CallBlock]:
        """Return the blocks of a call's request, in order. Raises NotFound, or NotReproducible."""
        done = await self._recordings.context(tenant_id, external_id, call_id)
        erased = frozenset(await audit.erased_seqs(self._database, session_key(tenant_id, external_id)))
        at = await self._moments.of_call(tenant_id, external_id, done)
        stays = None if at is None else at.protections
        return call_blocks(done.replayed, done.epoch.frontier, done.call, erased, stays, exact=done.is_exact)

    async def block(self, tenant_id: UUID, external_id: str, call_id: UUID, index: int) -> CallBlock:
        """Return one block of a call's request. Raises NotFound, or NotReproducible."""
        blocks = await self.blocks(tenant_id, external_id, call_id)
        if index >= len(blocks):
            named = {"session": external_id, "call": str(call_id)}
            raise NotFound(f"call {call_id} has {len(blocks)} blocks, and none at {index}", **named)
        return blocks[index]

    async def history(
        self, tenant_id: UUID, external_id: str, seq: int, *, view: str | None, after: UUID | None, limit: int
    ) -> list[HistoryItem]:
        """Return an event's fate in each call since it was logged, oldest first.

        All calls of an epoch share its decisions. Raises NotFound.
        """
        ref = session_ref(tenant_id, external_id)
        events = await event_log.with_calls(self._database, SessionLog(ref.session_id), (seq,), bodies=False)
        if not events:
            raise NotFound(f"session {external_id!r} has no event {seq}", session=external_id, seq=seq)
        stored_at = from_seconds(events[-1].at)  # no body was read, so this is when it was stored
        calls = await audit.calls_since(
            self._database, ref, seq=seq, view=view, after=after or first_id(stored_at), limit=limit
        )
        wanted = list({(call.view, call.epoch) for call in calls})
        epochs = await audit.epochs_of(self._database, ref.session_id, wanted)
        erased = await audit.erased_seqs(self._database, ref.session_id)
        rank = erased.index(seq) if seq in erased else len(erased)
        known: dict[tuple[object, ...], answers.EventFate] = {}
        items = []
        for call in calls:
            epoch = epochs.get((call.view, call.epoch))
            if epoch is None:
                detail = f"call {call.call_id} cannot be explained: epoch {call.epoch} of view {call.view!r} is missing"
                raise NotReproducible(detail, call_id=str(call.call_id))
            redacted = rank < call.manifest.redactions
            key = (call.view, call.epoch, call.policy, redacted)
            if key not in known:
                explainer = answers.Explainer(epoch.frontier, await self._policies.get(tenant_id, call.policy))
                known[key] = explainer.fates(events, [seq] if redacted else ())[seq]
            items.append(answers.history_item(call, known[key], epoch.cause))
        return items

    async def diff(self, tenant_id: UUID, external_id: str, a: UUID, b: UUID) -> DiffOut:
        """Return the differences from call `a` to call `b`. Raises NotFound, or NotReproducible."""
        return await self.diff_to(tenant_id, external_id, a, await self._find_recorded(tenant_id, external_id, b))

    async def diff_to(self, tenant_id: UUID, external_id: str, a: UUID, other: ComparedCall) -> DiffOut:
        """Return the differences from call `a` to another one. Raises NotFound, or NotReproducible."""
        recorded = await self._find_recorded(tenant_id, external_id, a)
        session_id = session_key(tenant_id, external_id)
        head = max(recorded.call.head, other.call.head)
        events = await event_log.events_without_bodies(self._database, SessionLog(session_id), head)
        erased = await audit.erased_seqs(self._database, session_id)
        ours, theirs = (_side(one, events, erased) for one in (recorded, other))
        earlier, later = sorted((ours, theirs), key=lambda side: side.call.call_id)
        seqs = answers.differing_seqs(ours.fates, theirs.fates)
        decided = await self._find_deciding(session_id, seqs, events, earlier, later)
        found = answers.changes(ours.fates, theirs.fates, later.fates, decided)
        total = theirs.call.counted - ours.call.counted
        extra: dict[str, int] = {}
        for key, tokens in _other_content_changes(ours.epoch.frontier, theirs.epoch.frontier).items():
            cause = decided[key].cause or "other"
            extra[cause] = extra.get(cause, 0) + tokens
        first = answers.first_difference(recorded.replayed, other.replayed)
        return answers.diff(external_id, ours.call, theirs.call, first, found, answers.by_cause(found, extra, total))

    async def _find_recorded(self, tenant_id: UUID, external_id: str, id: UUID) -> ComparedCall:
        call = await self._recordings.find(tenant_id, external_id, id)
        done = await self._recordings.reproduce(tenant_id, external_id, call)
        return ComparedCall(call, done.epoch, await self._policies.get(tenant_id, call.policy), done.replayed)

    async def _find_deciding(
        self, session_id: UUID, seqs: Sequence[int], events: Sequence[Event], earlier: _Side, later: _Side
    ) -> dict[int, answers.DecidingEpoch]:
        """Return for each seq the first of the consecutive epochs that show it as the later call does."""
        walk = _Walk(seqs, events, earlier, later)
        upper = later.epoch
        while walk.open and upper.epoch:
            place = (upper.head, upper.epoch)
            batch = await audit.epochs_before(self._database, session_id, later.call.view, place, EPOCHS_AT_ONCE)
            if not batch:
                break
            upper = batch[-1]
            if await asyncio.to_thread(walk.compare_back, batch):
                break
        return walk.finish()


def _side(one: ComparedCall, events: Sequence[Event], erased: Sequence[int]) -> _Side:
    """Return a compared call with its fates; `events` are all up to some later head."""
    explainer = answers.Explainer(one.epoch.frontier, one.policy)
    fates = explainer.fates(events[: one.call.head], erased[: one.call.manifest.redactions])
    return _Side(one.call, one.epoch, one.policy, fates)


class _Walk:
    """A walk back from the later call's epoch to the deciding epoch of every difference."""

    def __init__(self, seqs: Sequence[int], events: Sequence[Event], earlier: _Side, later: _Side) -> None:
        self._earlier, self._later = earlier, later
        self._last = later.epoch
        self.decided = dict.fromkeys((SUMMARIES, NOTE), answers.DecidingEpoch(None, None))
        self.open = set(seqs) | set(_other_content_changes(earlier.epoch.frontier, later.epoch.frontier))
        for seq in seqs:
            fates = later.fates.get(seq, answers.ABSENT)
            if fates == answers.ABSENT:
                self._decide(seq, None, "appended")
            elif fates.disposition == "redacted":
                self._decide(seq, None, "redaction")
        self._events = _events_and_calls(self.open, events)

    def compare_back(self, batch: Iterable[StoredEpoch]) -> bool:
        """Compare a batch of earlier epochs, latest first; return True when every deciding epoch is found."""
        view, number = self._earlier.call.view, self._earlier.call.epoch
        for epoch in batch:
            fates = answers.Explainer(epoch.frontier, self._later.policy).fates(self._events)
            for seq in sorted(self.open):
                if self._differs_in(seq, epoch, fates):
                    self._decide(seq, self._last.epoch, self._last.cause)
            self._last = epoch
            if not self.open or (view == self._later.call.view and epoch.epoch == number):
                return True
        return False

    def finish(self) -> dict[int, answers.DecidingEpoch]:
        """Return the deciding epochs; if none changed a seq, the first epoch or the append of the event."""
        for seq in list(self.open):
            if self._later.fates.get(seq, answers.ABSENT).disposition == "verbatim" and seq > self._earlier.call.head:
                self._decide(seq, None, "appended")
            else:
                self._decide(seq, self._last.epoch, self._last.cause)
        return self.decided

    def _differs_in(self, seq: int, epoch: StoredEpoch, fates: Mapping[int, answers.EventFate]) -> bool:
        if seq < 0:
            return _other_content(epoch.frontier, seq) != _other_content(self._later.epoch.frontier, seq)
        if "author" in (self._later.fates[seq].reason, self._earlier.fates.get(seq, answers.ABSENT).reason):
            return self._last.cause in RESETTING_CAUSES
        return fates[seq] != self._later.fates[seq]

    def _decide(self, seq: int, epoch: int | None, cause: str) -> None:
        self.open.discard(seq)
        self.decided[seq] = answers.DecidingEpoch(epoch, cause)


def _events_and_calls(seqs: Iterable[int], events: Sequence[Event]) -> list[Event]:
    """Return the events at these seqs, with the calls of results among them. `events` are all up to some head."""
    wanted = {seq for seq in seqs if seq > 0}
    wanted |= {call for seq in wanted if (call := events[seq - 1].call_seq)}
    return [events[seq - 1] for seq in sorted(wanted)]


def _other_content(state: Frontier, key: int) -> tuple[object, int]:
    """Return a frontier's other content under a key, and its tokens."""
    if key == NOTE:
        return state.note, state.note_tokens
    return tuple(fold.id for fold in state.folds if fold.shown), state.summary_tokens


def _other_content_changes(before: Frontier, after: Frontier) -> dict[int, int]:
    """Return the differences in tokens of the other content, by key; only keys that differ."""
    found = {}
    for key in (SUMMARIES, NOTE):
        old, new = _other_content(before, key), _other_content(after, key)
        if old != new:
            found[key] = new[1] - old[1]
    return found
