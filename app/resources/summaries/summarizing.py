"""One summary: its basis, its task, its writing by a model or without one, and the record that it becomes.

Files, constraints and identifiers are appended from the digest and never left to a model. Nothing here uses the
database.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from app.core.compaction.next_span import Span, merged_sizes, sizes
from app.core.lexicon.times import from_seconds, time_text
from app.core.log.event import Event
from app.core.log.events import Json, readable
from app.core.memory.cover import COVER_SHARE, Clipped, StoredSummary, Summary, clip, contiguous
from app.core.memory.digest.record import Digest, from_json, to_json
from app.core.memory.extractive import write_summary
from app.core.plan.reducers.visibility import NewestDecision
from app.core.plan.state import wording
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.providers import ProviderError, Summarizer
from app.resources.summaries.writing import SummaryInput, Writing, with_digest
from app.store.ids import new_id
from app.store.spans import SessionFacts

LEARNED_WINDOW_SECONDS: Final = 3_600.0
"""Seconds for which a window learned from a model's refusals replaces that of the settings."""


class SummarizerUnavailable(Exception):
    """No summarizer is available now; to be retried after `delay` seconds."""

    def __init__(self, detail: str, delay: float) -> None:
        super().__init__(detail)
        self.detail = detail
        self.delay = delay


@dataclass(frozen=True, slots=True)
class WrittenSummary:
    """A summary as it was written; `text` is None if writing failed. `refused` are the texts that did not pass the
    quality gate, each with its `complaints`."""

    text: str | None
    digest: Digest
    summarizer: str
    model: str | None = None
    prompt_version: str | None = None
    usage: Mapping[str, Json] = field(default_factory=dict)
    degraded: bool = False
    complaints: tuple[str, ...] = ()
    refused: tuple["WrittenSummary", ...] = ()
    tokens_read: int = 0
    error: str | None = None


@dataclass(eq=False)
class Summarizing:
    """Writes summaries by the summarizer that a policy names: `extractive` needs no model, the others are models behind
    guards.

    `window_tokens` is the most a model is given in one request, `timeout` its time limit in seconds, `attempts_max` the
    number of attempts before a run does without the model.
    """

    _summarizers: Mapping[str, Summarizer]
    _prompts: Mapping[str, str]
    default: str = "extractive"
    window_tokens: int = 100_000
    timeout: float = 120.0
    attempts_max: int = 3
    _learned_windows: dict[tuple[str, str | None], tuple[int, float]] = field(default_factory=dict, init=False)

    async def aclose(self) -> None:
        """Close the connections to the models."""
        for summarizer in self._summarizers.values():
            await summarizer.aclose()

    def has_model(self, policy: Policy) -> bool:
        """Return whether an available model writes the summaries of a policy."""
        return (policy.summarize.summarizer or self.default) in self._summarizers

    async def write(
        self,
        task: SummaryInput,
        policy: Policy,
        *,
        without_model: bool = False,
        charge: Callable[[Summarizer], Summarizer] = lambda summarizer: summarizer,
    ) -> WrittenSummary:
        """Write the summary of a task; `charge` wraps the summarizer to charge an account.

        Raises SummarizerUnavailable if a model is unavailable now and may be available later. After any other
        ProviderError, such as for a spent account, the result is that of `substitute`.
        """
        name = policy.summarize.summarizer or self.default
        summarizer = self._summarizers.get(name)
        if summarizer is None or without_model:
            draft = await asyncio.to_thread(_extract, task)
            wanted = name != "extractive"
            return replace(draft, degraded=wanted, error=f"summarizer {name!r} was not called" if wanted else None)
        try:
            return await self._write_by_model(name, charge(summarizer), task, policy)
        except ProviderError as error:
            if error.retryable:
                raise SummarizerUnavailable(f"{name}: {error.detail}", error.retry_after or 0.0) from error
            return await self.substitute(task, policy, f"{name}: {error.detail}")

    async def substitute(self, task: SummaryInput, policy: Policy, error: str) -> WrittenSummary:
        """Return the substitute for a failed summarizer: a summary without a model, or none, as the policy says."""
        if policy.summarize.on_fail == "unchanged":
            return WrittenSummary(None, task.digest, "none", error=error)
        return replace(await asyncio.to_thread(_extract, task), degraded=True, error=error)

    async def _write_by_model(
        self, name: str, summarizer: Summarizer, task: SummaryInput, policy: Policy
    ) -> WrittenSummary:
        model = (name, policy.summarize.model)
        window, until = self._learned_windows.get(model, (self.window_tokens, math.inf))
        known = window if time.monotonic() < until else self.window_tokens
        writing = Writing(summarizer, self._prompts, task, policy, known, self.timeout)
        digest = await asyncio.to_thread(lambda: task.digest)
        answer, refused = await writing.write(digest)
        if writing.window_tokens < known:
            self._learned_windows[model] = (writing.window_tokens, time.monotonic() + LEARNED_WINDOW_SECONDS)
        about = WrittenSummary(
            None,
            digest,
            name,
            answer.model,
            writing.style.key,
            {"input_tokens": writing.input_tokens, "output_tokens": writing.output_tokens},
            tokens_read=writing.input_tokens,
        )
        about = replace(about, refused=tuple(replace(about, text=text, complaints=why) for text, why in refused))
        if len(refused) > 1:
            why = f"{name}: refused: {refused[-1][1][0]}"
            fallback = await self.substitute(task, policy, why)
            if fallback.text is None:
                return replace(about, error=why)
            return replace(fallback, refused=about.refused, tokens_read=about.tokens_read, usage=about.usage)
        return replace(about, text=with_digest(answer.text, digest, task))


def _extract(task: SummaryInput) -> WrittenSummary:
    digest = task.digest
    previous = "\n\n".join(source.text for source in task.sources) or (task.previous if task.digests else "")
    events = () if task.sources else task.events
    text = write_summary(events, task.turn_start_events, previous, digest, task.sizes.summary, task.counter, task.focus)
    return WrittenSummary(text, digest, "extractive", prompt_version="extractive.v1", tokens_read=task.tokens)


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

    If `summarize.view` is `clip`, the model is also given the last summary before the events, or all of them in the
    `first` step of a run.
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
        turn_start_events=span.turn_start_events,
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
    """Return the summaries as a context shows them: all if they fit, else the first and the last."""
    fits = sum(one.tokens for one in cover) <= COVER_SHARE * basis.narrow.target
    return wording.archive(Clipped(tuple(cover)) if fits else clip(cover, basis.policy.summarize), recall=False)


def plan_merge(
    basis: Basis, merged: Sequence[StoredSummary], events: tuple[Event, ...], requests: tuple[Event, ...]
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
