"""Comparison of recorded calls: the fate of an event in each, and the differences of two."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.errors import NotFound, NotReproducible
from app.core.lexicon.times import from_seconds
from app.core.log.event import Event
from app.core.plan.state.frontier import Frontier
from app.core.policy.policy import Policy
from app.core.record import ReplayedCall
from app.resources.contexts.recordings import Recordings
from app.resources.policies.service import Policies
from app.store import audit, event_log
from app.store.audit import CallRow, StoredEpoch
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import first_id, session_key, session_ref
from app.wings.compare import differences
from app.wings.compare.schemas import DiffOut, HistoryItem

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
    fates: Mapping[int, differences.EventFate]


class Comparisons:
    """Compares recorded calls."""

    def __init__(self, database: Database, policies: Policies, recordings: Recordings) -> None:
        self._database = database
        self._policies = policies
        self._recordings = recordings

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
        known: dict[tuple[object, ...], differences.EventFate] = {}
        items = []
        for call in calls:
            epoch = epochs.get((call.view, call.epoch))
            if epoch is None:
                detail = f"call {call.call_id} cannot be explained: epoch {call.epoch} of view {call.view!r} is missing"
                raise NotReproducible(detail, call_id=str(call.call_id))
            redacted = rank < call.manifest.redactions
            key = (call.view, call.epoch, call.policy, redacted)
            if key not in known:
                explainer = differences.Explainer(epoch.frontier, await self._policies.get(tenant_id, call.policy))
                known[key] = explainer.fates(events, [seq] if redacted else ())[seq]
            items.append(differences.history_item(call, known[key], epoch.cause))
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
        seqs = differences.differing_seqs(ours.fates, theirs.fates)
        decided = await self._find_deciding(session_id, seqs, events, earlier, later)
        found = differences.changes(ours.fates, theirs.fates, later.fates, decided)
        total = theirs.call.counted - ours.call.counted
        others = _other_content_changes(ours.epoch.frontier, theirs.epoch.frontier)
        parts = [(one.decision, one.tokens) for one in found]
        parts += [(decided[key], tokens) for key, tokens in others.items()]
        first = differences.first_difference(recorded.replayed, other.replayed)
        return differences.diff(external_id, ours.call, theirs.call, first, found, differences.by_cause(parts, total))

    async def _find_recorded(self, tenant_id: UUID, external_id: str, id: UUID) -> ComparedCall:
        call = await self._recordings.find(tenant_id, external_id, id)
        done = await self._recordings.reproduce(tenant_id, external_id, call)
        return ComparedCall(call, done.epoch, await self._policies.get(tenant_id, call.policy), done.replayed)

    async def _find_deciding(
        self, session_id: UUID, seqs: Sequence[int], events: Sequence[Event], earlier: _Side, later: _Side
    ) -> dict[int, differences.DecidingEpoch]:
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
    explainer = differences.Explainer(one.epoch.frontier, one.policy)
    fates = explainer.fates(events[: one.call.head], erased[: one.call.manifest.redactions])
    return _Side(one.call, one.epoch, one.policy, fates)


class _Walk:
    """A walk back from the later call's epoch to the deciding epoch of every difference."""

    def __init__(self, seqs: Sequence[int], events: Sequence[Event], earlier: _Side, later: _Side) -> None:
        self._earlier, self._later = earlier, later
        self._last = later.epoch
        self.decided = dict.fromkeys((SUMMARIES, NOTE), differences.DecidingEpoch(None, None))
        self.open = set(seqs) | set(_other_content_changes(earlier.epoch.frontier, later.epoch.frontier))
        for seq in seqs:
            fates = later.fates.get(seq, differences.ABSENT)
            if fates == differences.ABSENT:
                self._decide(seq, None, "appended")
            elif fates.disposition == "redacted":
                self._decide(seq, None, "redaction")
        self._events = _events_and_calls(self.open, events)

    def compare_back(self, batch: Iterable[StoredEpoch]) -> bool:
        """Compare a batch of earlier epochs, latest first; return True when every deciding epoch is found."""
        view, number = self._earlier.call.view, self._earlier.call.epoch
        for epoch in batch:
            fates = differences.Explainer(epoch.frontier, self._later.policy).fates(self._events)
            for seq in sorted(self.open):
                if self._differs_in(seq, epoch, fates):
                    self._decide(seq, self._last.epoch, self._last.cause)
            self._last = epoch
            if not self.open or (view == self._later.call.view and epoch.epoch == number):
                return True
        return False

    def finish(self) -> dict[int, differences.DecidingEpoch]:
        """Return the deciding epochs; if none changed a seq, the first epoch or the append of the event."""
        for seq in list(self.open):
            if (
                self._later.fates.get(seq, differences.ABSENT).disposition == "verbatim"
                and seq > self._earlier.call.head
            ):
                self._decide(seq, None, "appended")
            else:
                self._decide(seq, self._last.epoch, self._last.cause)
        return self.decided

    def _differs_in(self, seq: int, epoch: StoredEpoch, fates: Mapping[int, differences.EventFate]) -> bool:
        if seq < 0:
            return _other_content(epoch.frontier, seq) != _other_content(self._later.epoch.frontier, seq)
        if "author" in (self._later.fates[seq].reason, self._earlier.fates.get(seq, differences.ABSENT).reason):
            return self._last.cause in RESETTING_CAUSES
        return fates[seq] != self._later.fates[seq]

    def _decide(self, seq: int, epoch: int | None, cause: str) -> None:
        self.open.discard(seq)
        self.decided[seq] = differences.DecidingEpoch(epoch, cause)


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
