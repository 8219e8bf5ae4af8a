"""Compaction: read the events, write a summary without an open transaction, store it if nothing has changed.

The worker calls `run_job` for a session; an append never waits for it, and a context only if it asked to. The basis of
a summary is checked when it is stored: if it has changed, the summary is discarded and the work planned again. Two
concurrent workers, or one that was thought dead, therefore do no harm.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from app.core.compaction.prompt import Completion, Prompt
from app.core.errors import CannotFit, InvalidPolicy, SessionGone, StoreUnavailable
from app.core.log.events import Json
from app.core.memory.cover import StoredSummary
from app.core.policy.groups import SHOW_ALL
from app.providers import ProviderError, Summarizer, cost, expected_tokens
from app.resources.policies.service import Policies
from app.resources.summaries.next_step import NotDue, StepPlanner
from app.resources.summaries.summarizing import (
    Basis,
    CompactionStep,
    SummarizerUnavailable,
    Summarizing,
    WrittenSummary,
    written_summary,
)
from app.store import compactions, jobs, sessions, spans, summaries
from app.store.compactions import CompactionDemand, RunOutcome, WaitingContext
from app.store.engine import Database
from app.store.ids import SessionRef, new_id
from app.store.jobs import WorkDone
from app.tokenizers import Counting

DATABASE_ERRORS: Final = (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(eq=False)
class PaidSummarizer:
    """A summarizer that is called only if its tenant's account has enough tokens left for the request.

    An account has `_most` tokens a day (UTC), input and output, of all models together. They are reserved before a
    model is called, and settled after its response. All processes over one database share a tenant's account, so the
    limit holds for them together. The reservation of a process that dies during a request is kept: the cost of that
    request is unknown.
    """

    _database: Database
    _tenant_id: UUID
    _most: int
    _inner: Summarizer

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - also the limit on the wire
        """See Summarizer. Raises StoreUnavailable, or ProviderError `spent`, without calling the model."""
        reserved = expected_tokens(ask)
        day = await jobs.reserve_tokens(self._database, self._tenant_id, reserved, self._most)
        if day is None:
            detail = f"the {self._most} tokens allowed in a day leave no room for about {reserved}"
            raise ProviderError("spent", detail, retryable=False)
        try:
            answer = await self._inner.summarize(ask, timeout=timeout)
        except ProviderError as error:
            await self._settle(day, reserved, reserved if error.kind == "timeout" else 0)  # a timeout may be billed
            raise
        await self._settle(day, reserved, cost(answer, reserved))
        return answer

    async def _settle(self, day: date, reserved: int, spent: int) -> None:
        """Settle a reservation; a failure is only logged, so that a paid response is not lost."""
        try:
            await jobs.settle_tokens(self._database, self._tenant_id, day, reserved, spent)
        except DATABASE_ERRORS as error:
            structlog.get_logger().warning("a summary's cost was not settled; its reservation stays", error=str(error))

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._inner.aclose()


STEPS_MAX: Final = 1_000
"""Summaries written in one run; a longer job continues in the next one."""
STALE_MAX: Final = 10
"""Summaries discarded in one run because their basis has changed, after which the run fails."""
KNOWN_SECONDS: Final = 1.0
"""Maximum age of a step's basis if only the run's own summaries have changed it. Other changes are detected when a
summary is stored and when the job ends."""
COOL_SECONDS: Final = 10.0
COOL_SECONDS_MAX: Final = 3_600.0
"""Pause of unrequested runs after a failure; it doubles with each further one, up to COOL_SECONDS_MAX."""
EXPLICIT_REASONS: Final = ("requested", "waited", "overflow")
"""Reasons that make a run due however few events there are."""
NOTHING_DONE: Final = RunOutcome("skipped", "nothing to compact")
EXAMINED_MAX: Final = 10_000
EXAMINED_SECONDS: Final = 600.0
"""Most sessions, and seconds, for which a run that found nothing due is remembered."""


@dataclass(slots=True)
class Run:
    """The state of a run: the requests it answers, the contexts that wait for it, its outcome, and whether it has
    summarized events yet. `demand` is the state of the session that the run last read. If only the log grows, nothing
    is due until it has `idle_tokens` tokens; 0 if that is not known."""

    ids: list[UUID]
    wanted: tuple[WaitingContext, ...] = ()
    outcome: RunOutcome = NOTHING_DONE
    demand: CompactionDemand | None = None
    has_summarized: bool = False
    idle_tokens: int = 0
    begun_at: float = field(default_factory=time.monotonic)


class Compaction:
    """Writes and stores the summaries of sessions."""

    def __init__(
        self, database: Database, counting: Counting, policies: Policies, summarizing: Summarizing, tokens_per_day: int
    ) -> None:
        """`tokens_per_day`: the limit of each tenant's account."""
        self._database = database
        self._planner = StepPlanner(database, counting, policies)
        self._summarizing = summarizing
        self._tokens_per_day = tokens_per_day
        self._examined: dict[UUID, Run] = {}

    def _charge_to(self, tenant_id: UUID) -> Callable[[Summarizer], Summarizer]:
        return partial(PaidSummarizer, self._database, tenant_id, self._tokens_per_day)

    async def aclose(self) -> None:
        """Close the connections to the models; the database stays open."""
        await self._summarizing.aclose()

    async def run_job(self, ref: SessionRef, job_id: int) -> int | None:
        """Do all compaction work of a session, including what arrives meanwhile. Raises SummarizerUnavailable.

        Returns the head up to which the log was examined, None if there is nothing to examine.
        """
        run = self._examined.pop(ref.session_id, None)
        if run is None or time.monotonic() - run.begun_at > EXAMINED_SECONDS:
            run = await self.run(ref)
        while not await self._release(ref, job_id, run):
            run = await self.run(ref)
        if run.idle_tokens:
            self._examined[ref.session_id] = run
            if len(self._examined) > EXAMINED_MAX:
                del self._examined[next(iter(self._examined))]
        return None if run.demand is None else run.demand.head

    async def _release(self, ref: SessionRef, job_id: int, run: Run) -> bool:
        async with self._database.transaction() as tx:
            return await compactions.release_session(tx, ref.session_id, job_id, run.demand, run.idle_tokens)

    async def run(self, ref: SessionRef, *, without_model: bool = False) -> Run:
        """Write all due and requested summaries of a session.

        Raises SummarizerUnavailable when a summarizer is unavailable; the run then stays scheduled.
        """
        waiting = await compactions.open_runs(self._database, ref.session_id)
        requested = any(one.reason in EXPLICIT_REASONS for one in waiting)
        focus = next((one.focus for one in waiting if one.focus), None)
        run = Run([one.id for one in waiting], tuple(one.context for one in waiting if one.context))
        try:
            await self._steps(run, ref, requested=requested, focus=focus, without_model=without_model)
        except (SummarizerUnavailable, SessionGone, *DATABASE_ERRORS, OSError):
            raise  # to be retried, by this worker or another
        except (CannotFit, InvalidPolicy) as error:  # the window leaves no room for a context
            structlog.get_logger().warning("no room for summaries", error=error.detail)
            if run.outcome == NOTHING_DONE:
                run.outcome = replace(NOTHING_DONE, error=f"no context fits its window: {error.detail}")
        except Exception as error:  # a bug must not be retried forever
            structlog.get_logger().exception("compaction failed")
            run.outcome = replace(run.outcome, state="failed", error=f"internal: {type(error).__name__}")
        if run.ids:
            await compactions.end(self._database, ref.session_id, run.ids, run.outcome)
            done = run.outcome
            structlog.get_logger().info("compaction ended", state=done.state, error=done.error, to_seq=done.to_seq)
        return run

    async def _steps(
        self, run: Run, ref: SessionRef, *, requested: bool, focus: str | None, without_model: bool
    ) -> None:
        stale, known, read_at = 0, None, 0.0
        for _ in range(STEPS_MAX):
            basis = known
            if basis is None or time.monotonic() - read_at > KNOWN_SECONDS:
                read_at = time.monotonic()
                basis = await self._planner.load_basis(ref, run.wanted)
                run.demand = basis.facts.demand if basis else run.demand
            if basis is None:
                return
            step = await self._planner.next_step(
                ref.session_id, basis, requested=requested, focus=focus, first=not run.has_summarized
            )
            if isinstance(step, NotDue):
                run.idle_tokens = basis.facts.tokens + step.growth if step.growth and not requested else 0
                if run.outcome == NOTHING_DONE:
                    run.outcome = _nothing_done(basis)
                return
            if not run.ids:
                if await compactions.in_cooldown(self._database, ref.session_id, COOL_SECONDS, COOL_SECONDS_MAX):
                    run.demand = None
                    return
                run.ids = [new_id()]
            now = step.basis.facts.context_tokens
            if known is None:
                await compactions.begin(self._database, ref, run.ids[0], step.reason, now)
            try:
                draft = await self._summarizing.write(
                    step.task, step.basis.policy, without_model=without_model, charge=self._charge_to(ref.tenant_id)
                )
            except SummarizerUnavailable as error:
                attempts = await compactions.reschedule(self._database, ref.session_id, run.ids[0], error.detail)
                if attempts < self._summarizing.attempts_max:
                    raise
                draft = await self._summarizing.substitute(step.task, step.basis.policy, error.detail)
            if draft.refused:
                await self._keep_refused(ref, step, draft)
            if draft.text is None:
                await self._count(ref.session_id, draft, "failed")
                run.outcome = replace(run.outcome, state="failed", error=draft.error)
                return
            known = None
            stored = await self._store(ref, step, draft)
            await self._count(ref.session_id, draft, _outcome(draft, stored=stored is not None))
            if stored is not None:
                new, known = stored
                run.outcome = _add_step(run.outcome, step, draft, new)
                run.has_summarized = run.has_summarized or bool(step.task.events)
                continue
            stale += 1
            if stale > STALE_MAX:
                run.outcome = replace(run.outcome, state="failed", error="the events to summarize kept changing")
                return

    async def rewrite_degraded(self, ref: SessionRef) -> bool:
        """Rewrite the oldest degraded summary with the policy's model; return whether it was rewritten.

        Raises SummarizerUnavailable if the model is unavailable now.
        """
        try:
            basis = await self._planner.load_basis(ref)
        except (CannotFit, InvalidPolicy):
            return False
        if basis is None or not self._summarizing.has_model(basis.policy):
            return False
        old = await summaries.oldest_degraded(self._database, ref.session_id, basis.cover_id)
        if old is None:
            return False
        step = await self._planner.plan_rewrite(basis, old, None)
        id = new_id()
        await compactions.begin(self._database, ref, id, "redo", basis.facts.context_tokens)
        try:
            draft = await self._summarizing.write(step.task, basis.policy, charge=self._charge_to(ref.tenant_id))
        except SummarizerUnavailable as unavailable:
            await compactions.end(self._database, ref.session_id, [id], RunOutcome("failed", unavailable.detail))
            raise
        if draft.text is None or draft.degraded:
            await self._count(ref.session_id, draft, "failed")
            await compactions.end(self._database, ref.session_id, [id], RunOutcome("failed", draft.error))
            return False
        stored = await self._store(ref, step, draft)
        await self._count(ref.session_id, draft, "rewritten" if stored is not None else "stale")
        outcome = RunOutcome("skipped", "the events to summarize have changed")
        if stored is not None:
            outcome = _add_step(outcome, step, draft, stored[0])
        await compactions.end(self._database, ref.session_id, [id], outcome)
        return stored is not None

    async def _count(self, session_id: UUID, draft: WrittenSummary, outcome: str) -> None:
        """Count a written summary, under the summarizer of the first text that the quality gate refused, if any."""
        done = WorkDone(
            "summary",
            draft.refused[0].summarizer if draft.refused else draft.summarizer,
            outcome,
            await jobs.queued_seconds(self._database, session_id),
            _figure(draft.usage, "input_tokens"),
            _figure(draft.usage, "output_tokens"),
        )
        await jobs.count_work(self._database, done)

    async def _store(
        self, ref: SessionRef, step: CompactionStep, draft: WrittenSummary
    ) -> tuple[StoredSummary, Basis] | None:
        """Store a summary; return it and the next step's basis, or None with nothing stored if its basis changed."""
        new, basis = written_summary(step, draft), step.basis
        after = basis.with_summary(new)
        try:
            async with self._database.transaction() as tx:
                locked = await sessions.lock(tx, ref)
                if locked is None or locked.redactions != basis.facts.redactions:
                    return None
                if await summaries.live_ids(tx, ref.session_id, basis.cover_id) != [one.id for one in basis.live]:
                    return None
                await summaries.insert(tx, ref, new)
                if basis.policy.shows == SHOW_ALL:
                    to_seq = after.cover[-1].to_seq if after.cover else 0
                    after = after.with_covered(await spans.set_covered(tx, basis.facts.log, to_seq))
        except asyncpg.ExclusionViolationError:
            return None
        return new, after

    async def _keep_refused(self, ref: SessionRef, step: CompactionStep, draft: WrittenSummary) -> None:
        """Store the texts that the quality gate refused, for inspection; no model ever sees them."""
        async with self._database.transaction() as tx:
            locked = await sessions.lock(tx, ref)
            if locked is None or locked.redactions != step.basis.facts.redactions:
                return  # the texts may contain what has been erased since
            for refused in draft.refused:
                kept = written_summary(step, refused)
                kept = replace(kept, status="refused", complaints=refused.complaints, sources=())
                await summaries.insert(tx, ref, kept)


def _nothing_done(basis: Basis) -> RunOutcome:
    """Return the outcome of a run that found nothing to summarize: why, and the span that is summarized already."""
    if not basis.policy.summarize.enabled:
        return replace(NOTHING_DONE, error="the policy writes no summaries (`summarize.enabled` is false)")
    if not basis.cover:
        return NOTHING_DONE
    last = basis.cover[-1].to_seq
    error = f"{NOTHING_DONE.error}: events 1 to {last} are summarized already"
    return replace(NOTHING_DONE, error=error, from_seq=1, to_seq=last)


def _outcome(draft: WrittenSummary, *, stored: bool) -> str:
    if not stored:
        return "stale"
    return "degraded" if draft.degraded else "live"


def _figure(usage: Mapping[str, Json], name: str) -> int:
    found = usage.get(name)
    return found if isinstance(found, int) else 0


def _add_step(outcome: RunOutcome, step: CompactionStep, draft: WrittenSummary, stored: StoredSummary) -> RunOutcome:
    before = step.basis.facts.context_tokens
    saved = max(0, step.task.tokens - stored.tokens)
    return RunOutcome(
        "succeeded",
        draft.error,
        (*outcome.summaries, UUID(stored.id)),
        min(outcome.from_seq or stored.from_seq, stored.from_seq),
        max(outcome.to_seq or stored.to_seq, stored.to_seq),
        outcome.tokens_read + draft.tokens_read,
        outcome.tokens_before or before,
        max(0, (outcome.tokens_after or before) - saved),
    )
