"""The fate of each event in a recorded call, and the differences of two calls as they are returned."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from app.core.log.event import Block, Event, Kind, content_text
from app.core.log.events import BOOKKEEPING, canonical_json
from app.core.log.segments import line_of
from app.core.plan.state.frontier import Fold, Frontier, Stub
from app.core.plan.state.projection import project
from app.core.policy.policy import Policy
from app.core.record import NO_COUNT, ReplayedCall
from app.core.record.evictions import HiddenEvents, dispositions, fold_eviction
from app.core.render.formats.layout import Layout, kind_of
from app.http.fields import answer_of
from app.resources.contexts.schemas import CallRef
from app.store.audit import CallRow
from app.wings.compare import schemas

BEGINS_CHARS: Final = 240
"""Characters of a block that a difference quotes."""
SHOWN: Final = frozenset({"verbatim", "stubbed", "redacted"})
"""The dispositions under which content is shown at an event's own position."""


@dataclass(frozen=True, slots=True)
class EventFate:
    """An event's disposition under a frontier, the decision that caused it, and its tokens as shown.

    Equal fates show the event in the same way; `tokens` is not compared. `stub` distinguishes stubs of one event.
    """

    disposition: str
    reducer: str | None = None
    reason: str | None = None
    summary: str | None = None
    stub: Stub | None = field(default=None, repr=False)
    tokens: int = field(default=0, compare=False)

    @property
    def shown(self) -> bool:
        """Whether content is shown at the event's own position."""
        if self.disposition == "replaced":
            return self.stub is not None and self.stub.tokens > 0
        return self.disposition in SHOWN


ABSENT: Final = EventFate("not_yet")
"""The fate of an event that was not in the log yet."""


class Explainer:
    """A frontier, indexed to explain many events."""

    def __init__(self, state: Frontier, policy: Policy) -> None:
        self._state = state
        self._shows = policy.shows
        self._stubs = {stub.seq: stub for stub in state.stubs}
        self._hidden = HiddenEvents(state)

    def fates(self, events: Sequence[Event], erased: Iterable[int] = ()) -> dict[int, EventFate]:
        """Return the fate of each of `events`, which must include the call of each result; `erased` are the seqs that
        had been redacted by then."""
        context = project(events, self._state, NO_COUNT, turn=0, shows=self._shows)
        words = dispositions(events, context, self._state, erased)
        return {event.seq: self._fate(event, words[event.seq]) for event in events}

    def _fate(self, event: Event, word: str) -> EventFate:
        stub = self._stubs.get(event.seq)
        if word == "redacted":
            return EventFate(word, None, "erased on request", tokens=stub.tokens if stub else event.tokens)
        if word == "verbatim":
            return EventFate(word, tokens=event.tokens)
        if word == "not_rendered":
            return EventFate(word, None, "bookkeeping" if event.type in BOOKKEEPING else "author")
        if stub is not None and word == stub.disposition:
            return EventFate(word, stub.reducer, stub.reason, stub=stub, tokens=stub.tokens)
        if word == "replaced":
            return EventFate(word, "prefix", "superseded")
        run = self._hidden.run(event.seq)
        if isinstance(run, Fold):
            row = fold_eviction(run)
            return EventFate(word, row.reducer, row.reason, run.id if run.shown else None)
        return EventFate(word) if run is None else EventFate(word, run.reducer, run.reason)


@dataclass(frozen=True, slots=True)
class DecidingEpoch:
    """The epoch that made a difference, and its cause. `epoch` is None if an append or a redaction made it."""

    epoch: int | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class DispositionChange:
    """Events from_seq..to_seq that two calls show differently; `tokens` is the increase from `before` to `after`."""

    from_seq: int
    to_seq: int
    before: EventFate
    after: EventFate
    why: EventFate
    decision: DecidingEpoch
    tokens: int

    @property
    def kind(self) -> str:
        """`added` to the context, `removed` from it, or `changed`."""
        if self.before.shown == self.after.shown:
            return "changed"
        return "added" if self.after.shown else "removed"


def differing_seqs(before: Mapping[int, EventFate], after: Mapping[int, EventFate]) -> list[int]:
    """Return the seqs that are shown differently, in order."""
    seqs = sorted(before.keys() | after.keys())
    return [seq for seq in seqs if before.get(seq, ABSENT) != after.get(seq, ABSENT)]


def changes(
    before: Mapping[int, EventFate],
    after: Mapping[int, EventFate],
    later: Mapping[int, EventFate],
    decided: Mapping[int, DecidingEpoch],
) -> list[DispositionChange]:
    """Return the differences as runs of neighbours that changed alike. `later` is whichever of `before` and `after` is
    of the later call, whose decisions made the difference."""
    runs: list[DispositionChange] = []
    for seq in differing_seqs(before, after):
        old, new, why = (side.get(seq, ABSENT) for side in (before, after, later))
        one = DispositionChange(seq, seq, old, new, why, decided[seq], new.tokens - old.tokens)
        last = runs[-1] if runs else None
        if last is not None and last.to_seq == seq - 1 and _alike(last, one):
            one = DispositionChange(last.from_seq, seq, old, new, why, one.decision, last.tokens + one.tokens)
            runs.pop()
        runs.append(one)
    return runs


def _alike(a: DispositionChange, b: DispositionChange) -> bool:
    def fields_of(one: DispositionChange) -> tuple[object, ...]:
        return (one.before.disposition, one.after.disposition, one.why.summary, one.why.reducer, one.why.reason)

    return fields_of(a) == fields_of(b) and a.decision == b.decision


def by_cause(parts: Iterable[tuple[DecidingEpoch, int]], total: int) -> dict[str, int]:
    """Return the difference of `total` tokens by cause: the parts, each with its decision, and `other` for the rest."""
    sums: Counter[str] = Counter()
    for decision, tokens in parts:
        sums[decision.cause or "other"] += tokens
    sums["other"] += total - sums.total()
    return {cause: tokens for cause, tokens in sums.items() if tokens}


def first_difference(a: ReplayedCall, b: ReplayedCall) -> schemas.FirstDifference | None:
    """Return the first block that differs, tools and system prompt included; None if no block does."""
    for index, (old, new) in enumerate(zip_longest(_blocks(a.layout), _blocks(b.layout))):
        if old != new:
            return schemas.FirstDifference(index=index, a=_described(old), b=_described(new))
    return None


def _blocks(layout: Layout) -> Sequence[Block]:
    return (*layout.prefix, *layout.blocks)


def _described(block: Block | None) -> schemas.BlockOut | None:
    if block is None:
        return None
    text = f"{block.tool} {canonical_json(block.arguments)}" if block.kind is Kind.CALL else content_text(block.content)
    return answer_of(schemas.BlockOut, block, kind=kind_of(block), chars=len(text), begins=text[:BEGINS_CHARS])


def history_item(call: CallRow, fate: EventFate, cause: str) -> schemas.HistoryItem:
    """Return an event's fate in a call; `cause` is that of the call's epoch."""
    return answer_of(schemas.HistoryItem, call, fate, cause=cause, reported=call.reported_at is not None)


def diff(
    session: str,
    a: CallRow,
    b: CallRow,
    first: schemas.FirstDifference | None,
    changes: Iterable[DispositionChange],
    by_cause: Mapping[str, int],
) -> schemas.DiffOut:
    """Return the differences from call `a` to call `b`: the first block, the events, and the tokens by cause."""
    return schemas.DiffOut(
        a=_ref(session, a),
        b=_ref(session, b),
        identical=first is None and a.format == b.format,
        first_difference=first,
        changes=[_change(change) for change in changes],
        tokens=schemas.TokensDiff(a=a.counted, b=b.counted, by_cause=dict(by_cause)),
    )


def _ref(session: str, call: CallRow) -> CallRef:
    return answer_of(CallRef, call, session=session, line=line_of(session))


def _change(change: DispositionChange) -> schemas.Change:
    return answer_of(
        schemas.Change,
        change,
        change.decision,
        change=change.kind,
        before=None if change.before == ABSENT else change.before.disposition,
        after=None if change.after == ABSENT else change.after.disposition,
        **_why(change.why),
    )


def _why(fate: EventFate) -> dict[str, str]:
    """Return the reasons that a fate has; a preview's response omits the others."""
    reasons = {name: getattr(fate, name) for name in ("summary", "reducer", "reason")}
    return {name: reason for name, reason in reasons.items() if reason is not None}
