"""One summary to be written: its basis, its task, and the row that it becomes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from app.core.compaction.next_span import Span, merged_sizes, sizes
from app.core.lexicon.times import from_seconds, to_seconds
from app.core.log.event import Event
from app.core.memory.cover import COVER_SHARE, Clipped, Summary, clip, contiguous
from app.core.memory.digest.digest import Digest, to_json
from app.core.plan.reducers.visibility import NewestDecision
from app.core.plan.state import wording
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.resources.summaries.summarizing import WrittenSummary
from app.resources.summaries.writing import Source, SummaryInput
from app.store.ids import new_id
from app.store.spans import SessionFacts
from app.store.summaries import LiveSummary, NewSummary, as_live


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
    live: tuple[LiveSummary, ...]
    decisions: tuple[NewestDecision, ...] = ()

    @property
    def cover(self) -> tuple[Summary, ...]:
        """The live summaries from seq 1 on, without a gap."""
        return contiguous(one.summary for one in self.live)

    def with_summary(self, new: NewSummary, covered_tokens: int) -> "Basis":
        """Return the next step's basis, after `new` is stored and the cover includes `covered_tokens` of the log."""
        kept = (one for one in self.live if UUID(one.summary.id) not in new.sources)
        live = sorted((*kept, as_live(new)), key=lambda one: one.summary.from_seq)
        return replace(self, facts=replace(self.facts, covered_tokens=covered_tokens), live=tuple(live))


@dataclass(frozen=True, slots=True)
class CompactionStep:
    """One summary to be written: of a span of events, or of summaries to be merged."""

    basis: Basis
    task: SummaryInput
    from_seq: int
    to_seq: int
    depth: int
    turns: tuple[int, ...]
    events: int
    starts: float
    ends: float
    split_turn: int | None
    sources: tuple[UUID, ...]

    @property
    def reason(self) -> str:
        """Reason to record for the run."""
        if self.task.sources:
            return "merge"
        return "redaction" if self.sources and not self.task.digests else "pressure"


def plan_span(
    basis: Basis,
    span: Span,
    sources: Sequence[Summary],
    cover: Sequence[Summary],
    focus: str | None,
    digests: Sequence[Digest] = (),
    *,
    requests: tuple[Event, ...] = (),
    first: bool = False,
) -> CompactionStep:
    """Plan a summary of events; `sources` and their `digests` become part of it.

    If the policy's view is `clip`, the model is given the summary before it, or the whole archive for a run's `first`.
    """
    rules = basis.policy.summarize
    events = span.all_events
    parts = [one for one in basis.live if one.summary in sources]
    previous = sources[-1].text if sources else ""
    if not sources and rules.view == "clip" and cover:
        previous = _archive(basis, cover) if first else cover[-1].text
    task = SummaryInput(
        counter=basis.counter,
        sizes=sizes(basis.policy, basis.narrow),
        events=span.events,
        split_turn_events=span.split_events,
        previous=previous,
        digests=tuple(digests),
        focus=focus or "",
        tokens=span.tokens + sum(one.tokens for one in sources),
        requests=requests,
    )
    return CompactionStep(
        basis,
        task,
        from_seq=sources[0].from_seq if sources else span.from_seq,
        to_seq=span.to_seq,
        depth=max((one.depth + 1 for one in sources), default=0),
        turns=tuple(sorted({turn for one in parts for turn in one.turns} | {event.turn for event in events})),
        events=len(events) + sum(one.events for one in sources),
        starts=min([to_seconds(one.starts_at) for one in parts] or [event.at for event in events] or [0.0]),
        ends=max((event.at for event in events), default=0.0),
        split_turn=span.split_turn,
        sources=tuple(UUID(one.id) for one in sources),
    )


def _archive(basis: Basis, cover: Sequence[Summary]) -> str:
    """Return the archive as a view of the basis shows it: whole if it has room, else its first and last batches."""
    fits = sum(one.tokens for one in cover) <= COVER_SHARE * basis.narrow.target
    return wording.archive(Clipped(tuple(cover)) if fits else clip(cover, basis.policy.summarize), recall=False)


def plan_merge(
    basis: Basis,
    merged: Sequence[Summary],
    events: tuple[Event, ...],
    digests: Sequence[Digest],
    requests: tuple[Event, ...],
) -> CompactionStep:
    """Plan to merge summaries and their digests, from their texts or, with `events`, from the log."""
    parts = [one for one in basis.live if one.summary in merged]
    task = SummaryInput(
        counter=basis.counter,
        sizes=merged_sizes(basis.policy, basis.budget, [one.tokens for one in merged]),
        events=events,
        sources=tuple(Source(one.text, one.from_seq, one.to_seq) for one in merged),
        digests=tuple(digests),
        tokens=sum(one.tokens for one in merged),
        requests=requests,
    )
    return CompactionStep(
        basis,
        task,
        from_seq=merged[0].from_seq,
        to_seq=merged[-1].to_seq,
        depth=max(one.depth for one in merged) + 1,
        turns=tuple(sorted({turn for one in parts for turn in one.turns})),
        events=sum(one.events for one in merged),
        starts=min(to_seconds(one.starts_at) for one in parts),
        ends=max(to_seconds(one.ends_at) for one in parts),
        split_turn=merged[-1].split_turn,
        sources=tuple(UUID(one.id) for one in merged),
    )


def summary_row(step: CompactionStep, draft: WrittenSummary) -> NewSummary:
    """Return the row of the summary that a step has written."""
    basis = step.basis
    parts = (one.summary for one in basis.live if step.task.digests and UUID(one.summary.id) in step.sources)
    merged = sum(part.source_tokens for part in parts)
    own = (
        sum(event.tokens for event in (*step.task.events, *step.task.split_turn_events)) if not step.task.sources else 0
    )
    return NewSummary(
        id=new_id(),
        cover_id=basis.cover_id,
        depth=step.depth,
        from_seq=step.from_seq,
        to_seq=step.to_seq,
        text=draft.text or "",
        digest=to_json(draft.digest),
        tokens=basis.counter.message(draft.text or ""),
        source_tokens=merged + own,
        events=step.events,
        turns=step.turns,
        split_turn=step.split_turn,
        starts_at=from_seconds(step.starts),
        ends_at=from_seconds(step.ends),
        summarizer=draft.summarizer,
        model=draft.model,
        prompt_version=draft.prompt_version,
        usage=draft.usage,
        degraded=draft.degraded,
        sources=step.sources,
    )
