"""One summary to be written: its basis, its task, and the record that it becomes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from app.core.compaction.next_span import Span, merged_sizes, sizes
from app.core.lexicon.times import from_seconds, time_text
from app.core.log.event import Event
from app.core.log.events import readable
from app.core.memory.cover import COVER_SHARE, Clipped, StoredSummary, Summary, clip, contiguous
from app.core.memory.digest.record import from_json, to_json
from app.core.plan.reducers.visibility import NewestDecision
from app.core.plan.state import wording
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.resources.summaries.summarizing import WrittenSummary
from app.resources.summaries.writing import SummaryInput
from app.store.ids import new_id
from app.store.spans import SessionFacts


@dataclass(frozen=True, slots=True)
class Basis:
    """The basis of a step: the session as it was read, and values that follow from its policy.

    `budget` is the main view's. `narrow` is that of the view with the least room, which decides how much one summary
    covers. `newest` decides how much stays unsummarized: it is `narrow`, or less for the retry of a refused call.
    """

    facts: SessionFacts
    policy: Policy
    counter: Counter
    budget: Budget
    narrow: Budget
    newest: Budget
    cover_id: UUID
    live: tuple[Summary, ...]
    decisions: tuple[NewestDecision, ...] = ()

    @property
    def cover(self) -> tuple[Summary, ...]:
        """The live summaries from seq 1 on, without a gap."""
        return contiguous(self.live)

    def with_summary(self, new: StoredSummary) -> "Basis":
        """Return the basis after `new` has superseded its sources, with the same `covered_tokens`."""
        kept = (one for one in self.live if one.id not in new.sources)
        return replace(self, live=tuple(sorted((*kept, new), key=lambda one: one.from_seq)))

    def with_covered(self, tokens: int) -> "Basis":
        """Return the basis with a cover that includes `tokens` of the log."""
        return replace(self, facts=replace(self.facts, covered_tokens=tokens))


@dataclass(frozen=True, slots=True)
class CompactionStep:
    """One summary to be written: of a span of events, or of summaries to be merged. `planned` has no text yet."""

    basis: Basis
    task: SummaryInput
    planned: StoredSummary

    @property
    def reason(self) -> str:
        """Reason to record for the run."""
        if self.task.sources:
            return "merge"
        return "redaction" if self.planned.sources and not self.task.digests else "pressure"


def plan_span(
    basis: Basis,
    span: Span,
    sources: Sequence[StoredSummary],
    cover: Sequence[Summary],
    focus: str | None,
    *,
    requests: tuple[Event, ...] = (),
    first: bool = False,
) -> CompactionStep:
    """Plan a summary of events; `sources` and their digests become part of it.

    If the policy's view is `clip`, the model is given the summary before it, or the whole archive in the `first` step
    of a run.
    """
    rules = basis.policy.summarize
    events = span.all_events
    previous = sources[-1].text if sources else ""
    if not sources and rules.view == "clip" and cover:
        previous = _archive(basis, cover) if first else cover[-1].text
    task = SummaryInput(
        counter=basis.counter,
        sizes=sizes(basis.policy, basis.narrow),
        events=span.events,
        split_turn_events=span.split_events,
        previous=previous,
        digests=tuple(from_json(one.digest) for one in sources),
        focus=focus or "",
        tokens=span.tokens + sum(one.tokens for one in sources),
        requests=requests,
    )
    from_seq = sources[0].from_seq if sources else span.from_seq
    planned = _planned(basis, sources, events, from_seq, span.to_seq, span.split_turn)
    return CompactionStep(basis, task, planned)


def _archive(basis: Basis, cover: Sequence[Summary]) -> str:
    """Return the archive as a view of the basis shows it: whole if it has room, else its first and last batches."""
    fits = sum(one.tokens for one in cover) <= COVER_SHARE * basis.narrow.target
    return wording.archive(Clipped(tuple(cover)) if fits else clip(cover, basis.policy.summarize), recall=False)


def plan_merge(
    basis: Basis,
    merged: Sequence[StoredSummary],
    events: tuple[Event, ...],
    requests: tuple[Event, ...],
) -> CompactionStep:
    """Plan to merge summaries and their digests, from their texts or, with `events`, from the log."""
    task = SummaryInput(
        counter=basis.counter,
        sizes=merged_sizes(basis.policy, basis.budget, [one.tokens for one in merged]),
        events=events,
        sources=tuple(merged),
        digests=tuple(from_json(one.digest) for one in merged),
        tokens=sum(one.tokens for one in merged),
        requests=requests,
    )
    last = merged[-1]
    return CompactionStep(basis, task, _planned(basis, merged, (), merged[0].from_seq, last.to_seq, last.split_turn))


def _planned(
    basis: Basis,
    sources: Sequence[StoredSummary],
    events: Sequence[Event],
    from_seq: int,
    to_seq: int,
    split_turn: int | None,
) -> StoredSummary:
    """Return a summary of sources and of the events after them, without its text."""
    turns = tuple(sorted({turn for one in sources for turn in one.turns} | {event.turn for event in events}))
    starts = [one.starts_at for one in sources] or [_to_second(event.at) for event in events]
    ends = [_to_second(event.at) for event in events] or [one.ends_at for one in sources]
    return StoredSummary(
        "",
        from_seq,
        to_seq,
        max((one.depth + 1 for one in sources), default=0),
        0,
        "",
        source_tokens=sum(one.source_tokens for one in sources) + sum(event.tokens for event in events),
        events=sum(one.events for one in sources) + len(events),
        split_turn=split_turn,
        starts_at=min(starts, default=_to_second(0.0)),
        ends_at=max(ends, default=_to_second(0.0)),
        cover_id=str(basis.cover_id),
        first_turn=turns[0] if turns else 0,
        last_turn=turns[-1] if turns else 0,
        turns=turns,
        sources=tuple(one.id for one in sources),
    )


def _to_second(seconds: float) -> str:
    """Return a time without fractions of a second, as text."""
    return f"{time_text(from_seconds(seconds))[:19]}Z"


def written_summary(step: CompactionStep, draft: WrittenSummary) -> StoredSummary:
    """Return the summary that a step has written, with an id of its own."""
    text = readable(draft.text or "")
    return replace(
        step.planned,
        id=str(new_id()),
        text=text,
        tokens=step.basis.counter.message(text),
        digest=to_json(draft.digest),
        summarizer=draft.summarizer,
        model=draft.model,
        prompt_version=draft.prompt_version,
        usage=draft.usage,
        degraded=draft.degraded,
    )
