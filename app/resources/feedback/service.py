"""Feedback: reported outcomes of calls, the next action, and the calibration of the estimator."""

import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from app.core import dataclass, field, replace
from app.core.assembly.assemble import CallRecord
from app.core.assembly.inputs import OBSERVED_VIEW, ContextRequest, Injection, Retry
from app.core.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable
from app.core.log.segments import is_line
from app.core.policy.overflow import Overflow
from app.core.policy.policy import Policy
from app.core.tokens.calibration import Reported
from app.core.tokens.learned import Point, initial_state, with_cache
from app.core.tokens.models import CacheProfile, profile_name
from app.resources.contexts.view_cache import ReportResults, ViewCache
from app.resources.feedback.measurements import (
    CacheReads,
    Lessons,
    Report,
    Verdict,
    budget_after,
    claim_of,
    estimate_error,
    is_believable,
    outcome_if_sent,
    outcome_of,
    own_lessons,
    point_of,
    same_report,
    shared_lessons,
    usage_of,
)
from app.resources.policies.service import Policies
from app.store import audit, calibrations, compactions, lines, reports
from app.store.audit import CallRow, ReportedCall, without_outcome
from app.store.calibrations import CalibrationSamples, KnownModel
from app.store.compactions import WaitingContext
from app.store.engine import Connection, Database, Executor
from app.store.ids import SessionRef, overflow_run, session_ref
from app.store.reports import OutcomeChanges, ReportedOutcome, ReportedView
from app.tokenizers import Counting

REASON: Final = "overflow"
MODELS_KNOWN_MAX: Final = 200
"""Most calibrations kept in memory, each as its last report left it: twenty kilobytes each."""
RETRY_WAIT_MS: Final = 10_000
"""Default time, in milliseconds, for which a retry waits for a summary."""


@dataclass(frozen=True, slots=True)
class RecordedReport:
    """A report that a transaction has recorded, with the call as it was before, the call's policy, and the outcome.

    `overflow` is the matched pattern. `lessons` is None if nothing was learned. `usage` is the view's new usage, None
    if the report gives none or a later call has reported. `previous` is the view's call before, None if unknown.
    `changed` and `taught` are the view and the calibration that it changes, each with its name. A `repeated` report
    changes nothing.
    """

    ref: SessionRef
    call: CallRow
    policy: Policy
    outcome: ReportedOutcome
    overflow: Overflow | None = None
    lessons: Lessons | None = None
    usage: Reported | None = None
    previous: UUID | None = None
    changed: tuple[str, ReportedView] | None = None
    taught: tuple[str, CalibrationSamples] | None = None
    repeated: bool = False

    @property
    def verdict(self) -> Verdict:
        """The call with its outcome, without measurements."""
        return Verdict(self.call, self.outcome, RETRY_WAIT_MS if self.policy.summarize.enabled else None)

    @property
    def results(self) -> ReportResults | None:
        """The changes of held views; None without any."""
        if self.lessons is None:
            return None
        learned = None if self.lessons.own is None else (self.lessons.own, self.lessons.version)
        stored = None if self.changed is None else self.changed[1]
        return ReportResults(self.call.view, self.call.model, self.lessons.shared, self.usage, learned, stored)


@dataclass(eq=False)
class Feedback:
    """Records reports and learns from them.

    `cache_reads`, set by a wing, measures the reads of a reported call from the provider's cache.
    """

    _database: Database
    _counting: Counting
    _policies: Policies
    _view_cache: ViewCache
    _caches: Mapping[str, CacheProfile]
    _on_report: Callable[[Verdict], None]
    cache_reads: Callable[[RecordedReport], Awaitable[CacheReads | None]] | None = None
    _models: dict[tuple[UUID, str | None, str], CalibrationSamples] = field(default_factory=dict, init=False)

    async def report(self, tenant_id: UUID, address: str, call_id: UUID, report: Report) -> Verdict:
        """Record a report, learn from it, and return the call with its outcome, from which `outcome_out` derives the
        next action.

        `address` is the session's id or a line's. Raises NotFound, InvalidRequest for an empty report, or Conflict if
        another outcome was reported before.
        """
        database, ref = self._database, session_ref(tenant_id, address)

        async def record(ref: SessionRef) -> RecordedReport:
            made = await self._report_held(database, ref, call_id, report)
            if made is None and report.error is None and database.is_direct:
                found = await audit.to_report(database, ref, call_id, lock=False)
                if found is None:
                    raise _no_call(address, call_id)
                made = await self._report_in_one_statement(database, ref, found, report)
            locked = partial(self._report_locked, ref=ref, address=address, call_id=call_id, report=report)
            return await database.run_in_transaction(locked) if made is None else made

        return await self.finish(await _on_its_line(database, ref, address, call_id, record))

    async def report_in(
        self, tx: Connection, ref: SessionRef, address: str, call_id: UUID, report: Report
    ) -> RecordedReport:
        """Record a report in a transaction and learn from it. Call `finish` after the commit.

        `ref` is the line that probably made the call. `address` is named in errors. Raises NotFound, InvalidRequest for
        an empty report, or Conflict if another outcome was reported before.
        """

        async def record(ref: SessionRef) -> RecordedReport:
            held = await self._report_held(tx, ref, call_id, report)
            return held or await self._report_locked(tx, ref, address, call_id, report)

        return await _on_its_line(tx, ref, address, call_id, record)

    async def _report_locked(
        self, tx: Connection, ref: SessionRef, address: str, call_id: UUID, report: Report
    ) -> RecordedReport:
        """Record a report with the call, its view and its model's calibration locked."""
        found = await audit.to_report(tx, ref, call_id, lock=True)
        if found is None:
            raise _no_call(address, call_id)
        if self._database.is_direct and (made := await self._report_in_one_statement(tx, ref, found, report)):
            return made
        call, model = found.call, found.call.model
        policy = await self._policies.get(ref.tenant_id, call.policy, tx)
        outcome, overflow = outcome_of(report, call, policy)
        if call.outcome is not None and same_report(call.outcome, outcome):
            return RecordedReport(ref, call, policy, call.outcome, repeated=True)
        if call.outcome is not None and (call.outcome.error is None or call.outcome.overflow):
            raise Conflict("another outcome of this call was reported before", call_id=str(call_id))
        measured: ReportedOutcome | None = outcome
        if call.view == OBSERVED_VIEW:
            overflow, measured = None, outcome_if_sent(call, outcome)
        point = None if measured is None else point_of(call, measured, overflow, time.time())
        if measured is None or point is None:
            await reports.store_outcome_locked(tx, ref, call_id, OutcomeChanges(outcome))
            return RecordedReport(ref, call, policy, outcome, overflow)
        known, wait = found.calibration, overflow is not None
        if model is not None and (known is None or (wait and not known.locked)):
            key = (ref.tenant_id, model, call.manifest.estimator)
            found = replace(found, calibration=await calibrations.lock(tx, *key, self._margin(call), wait=wait))
        parent = None if call.retry_of is None else await audit.find(tx, ref, call.retry_of)
        made = self._learn(ref, found, policy, measured, point, overflow, parent)
        await reports.store_outcome_locked(tx, ref, call_id, OutcomeChanges(outcome, made.changed, made.taught))
        self._models.pop(_model_key(ref, call), None)
        return replace(made, outcome=outcome, taught=None)

    async def _report_held(self, on: Executor, ref: SessionRef, call_id: UUID, report: Report) -> RecordedReport | None:
        """Record the first report of a held view's last call, in one statement; None if it must be read first."""
        held = self._view_cache.of_call(ref.session_id, call_id) if self._database.is_direct else None
        if held is None or held.stored is None:
            return None
        known = self._models.get(_model_key(ref, held.call))
        found = ReportedCall(without_outcome(held.call), held.stored, known, None)
        return await self._report_in_one_statement(on, ref, found, report)

    async def _report_in_one_statement(
        self, on: Executor, ref: SessionRef, found: ReportedCall, report: Report
    ) -> RecordedReport | None:
        """Record a call's first report, of its usage, in one statement; None, with nothing stored, if it needs locks.

        It does, for example, if the stored view differs from `found`'s. A calibration that differs or is locked stays.
        """
        call, taken = found.call, found.calibration
        if report.error is not None or found.view is None or call.outcome is not None:
            return None
        if call.retry_of is not None or call.view == OBSERVED_VIEW or (call.model is not None and taken is None):
            return None
        policy = await self._policies.get(ref.tenant_id, call.policy, on if isinstance(on, Connection) else None)
        outcome, _ = outcome_of(report, call, policy)
        point = point_of(call, outcome, None, time.time())
        made = None if point is None else self._learn(ref, found, policy, outcome, point)
        if made is None or made.changed is None:
            return None
        changes = OutcomeChanges(outcome, made.changed, made.taught)
        stored = await reports.store_outcome_if_unchanged(on, ref, call.call_id, changes, found.view)
        if stored is None:
            return None
        call, taught, lessons = replace(call, created_at=stored.created_at), made.taught, made.lessons
        if taught is not None and stored.taught:
            taught = taught[0], replace(taught[1], updated_at=stored.at)
        elif taught is not None and lessons is not None and taken is not None:
            taught, lessons = None, lessons._replace(shared=taken.known)
            if self._models.get(key := _model_key(ref, call)) is taken:
                del self._models[key]
        return replace(made, call=call, previous=stored.previous, taught=taught, lessons=lessons)

    async def finish(self, recorded: RecordedReport) -> Verdict:
        """Do what follows the commit of a report, and return the call with its outcome and measurements.

        The held views are updated, a refused call's retry gets its compaction, and the report is observed. A failure of
        the database is only logged.
        """
        ref, call, outcome, overflow = recorded.ref, recorded.call, recorded.outcome, recorded.overflow
        if recorded.repeated:
            return self._observe(recorded.verdict)
        if (results := recorded.results) is not None:
            self._view_cache.add_report(ref.session_id, results)
        if recorded.taught is not None:
            if len(self._models) >= MODELS_KNOWN_MAX:
                self._models.clear()
            self._models[_model_key(ref, call)] = recorded.taught[1]
        if overflow is not None and recorded.verdict.wait_ms is not None:
            lessons = recorded.lessons or Lessons(None, None, 0)
            with _only_logged("no compaction"):
                await self._compact(ref, call, recorded.policy, lessons, overflow.tokens)
        if call.view == OBSERVED_VIEW:
            return self._observe(recorded.verdict)
        cache = None
        if self.cache_reads and outcome.cache_read_tokens is not None and outcome.input_tokens is not None:
            with _only_logged("cache reads are not compared"):
                cache = await self.cache_reads(recorded)
        error = estimate_error(call, outcome)
        return self._observe(replace(recorded.verdict, overflow=overflow, estimate_error=error, cache=cache))

    def _observe(self, verdict: Verdict) -> Verdict:
        self._on_report(verdict)
        return verdict

    async def retry_request(
        self, tenant_id: UUID, address: str, retry_of: UUID, request: ContextRequest, given: Collection[str]
    ) -> ContextRequest:
        """Return the request of a retry: fields that are not `given` are those of the earlier call.

        Raises NotFound, Conflict (it did not overflow, was only observed, or is a retry), or InvalidRequest (another
        view or an earlier head).
        """
        ref = session_ref(tenant_id, address)
        call = await self._call(ref, address, retry_of)
        if call.retry_of is not None:
            raise Conflict("this call is itself a retry", call_id=str(retry_of))
        if call.view == OBSERVED_VIEW:
            raise Conflict("this call's context was only recorded", call_id=str(retry_of))
        if call.outcome is None or not call.outcome.overflow:
            raise Conflict("this call has not been reported as too long", call_id=str(retry_of))
        if "view" in given and request.view != call.view:
            raise InvalidRequest(f"the call to retry is of the view {call.view!r}", field="view")
        if request.at is not None:
            raise InvalidRequest("a retry is for the newest context: leave out `at`", field="at")
        injections = tuple(Injection(name, content) for name, content in call.manifest.injections)
        stated = (call.outcome.error or {}).get("overflow")
        tokens = stated.get("tokens") if isinstance(stated, Mapping) else None
        by_call = call.manifest.outside if call.manifest.outside_by == "call" else None
        return replace(
            request,
            view=call.view,
            format=request.format if "format" in given else call.format,
            model=request.model if request.model is not None else call.model,
            max_tokens=request.max_tokens if request.max_tokens is not None else call.manifest.window,
            injections=request.injections if "injections" in given else injections,
            outside_tokens=request.outside_tokens if request.outside_tokens is not None else by_call,
            recall=request.recall if "recall" in given else call.manifest.recall,
            cache_last=request.cache_last if "cache_last" in given else call.manifest.cache_last,
            retry=Retry(retry_of, call.counted or call.estimate, tokens if isinstance(tokens, int) else None),
        )

    async def calibrations(self, tenant_id: UUID, limit: int, after: tuple[str, str] | None) -> list[KnownModel]:
        """Return a tenant's calibrations, by model and estimator."""
        return await calibrations.page(self._database, tenant_id, limit, after)

    async def forget(self, tenant_id: UUID, model: str | None, estimator: str | None) -> int:
        """Delete the calibrations of a model, an estimator, or all, but not what views learned; return their number."""
        self._models.clear()
        return await calibrations.delete(self._database, tenant_id, model, estimator)

    async def _call(self, ref: SessionRef, address: str, call_id: UUID) -> CallRow:
        call = await audit.find(self._database, ref, call_id)
        if call is None:
            raise _no_call(address, call_id)
        return call

    def _margin(self, call: CallRow) -> float:
        """Return the own margin of a call's estimator."""
        return self._counting.session_counter(call.manifest.estimator, call.model).estimator.margin

    def _learn(
        self,
        ref: SessionRef,
        found: ReportedCall,
        policy: Policy,
        outcome: ReportedOutcome,
        point: Point,
        overflow: Overflow | None = None,
        parent: CallRow | None = None,
    ) -> RecordedReport:
        """Learn from an outcome about the view and its model; `parent` is the call that this one retries.

        Reports of one model's calls do not wait for each other: a report that arrives while another updates the model
        updates only its view, unless the call was refused. So the model learns from a sample of its calls.
        """
        call, view, taken = found.call, found.view, found.calibration
        estimator, margin = call.manifest.estimator, self._margin(call)
        shared = None if taken is None else taken.known
        before = None if view is None else view.learned
        if before is None or (before.model, before.known.estimator) != (call.model, estimator):
            before = initial_state(call.model, estimator, margin)
        source = ref.session_id.hex
        claim = claim_of(call, parent, point, overflow, source)
        if claim is not None and not is_believable(claim, point, overflow, (before.known, shared), point.at):
            claim = None
        own = own_lessons(before, call, point, claim, overflow, margin)
        counts = (outcome.input_tokens, outcome.cache_read_tokens, outcome.cache_write_tokens)
        own = with_cache(own, *counts, known=profile_name(call.model, self._caches) is not None)
        version = 0 if view is None or own == before else view.learned_version + 1
        taught: tuple[str, CalibrationSamples] | None = None
        if call.model is not None and taken is not None and taken.locked:
            taught = call.model, shared_lessons(taken, before, own, point, claim, overflow, margin, source)
            shared = taught[1].known
        lessons = Lessons(shared, own if version else None, version)
        usage = usage_of(call, outcome)
        if view is None or (view.reported is not None and view.reported.call_id >= call.call_id):
            usage = None
        changed = view if view is None or usage is None else replace(view, reported=usage)
        if changed is not None and lessons.own is not None:
            changed = replace(changed, learned=lessons.own, learned_version=version)
        # After a later call's report, the target follows from that one.
        settings = (call.policy, call.model, call.manifest.window)
        if changed and (usage is not None or outcome.error is not None) and settings == changed.settings:
            budget = budget_after(policy, call, lessons, usage, self._counting.counter(call.model, policy))
            changed = replace(changed, target=1 if budget is None else max(1, budget.target))
        stored = None if changed is None or changed == view else (call.view, changed)
        return RecordedReport(ref, call, policy, outcome, overflow, lessons, usage, found.previous, stored, taught)

    async def _compact(
        self, ref: SessionRef, call: CallRow, policy: Policy, lessons: Lessons, tokens: int | None
    ) -> None:
        """Schedule a compaction for a refused call's retry."""
        counter = self._counting.counter(call.model, policy)
        retry = Retry(call.call_id, call.counted or call.estimate, tokens)
        budget = budget_after(policy, call, lessons, None, counter, retry)
        wanted = None
        if budget is not None:
            wanted = WaitingContext(call.view, budget.used_window, call.policy, tightened=True)
        async with self._database.transaction() as tx:
            await compactions.schedule(tx, ref, overflow_run(call.call_id), REASON, context=wanted)


def _model_key(ref: SessionRef, call: CallRecord) -> tuple[UUID, str | None, str]:
    return ref.tenant_id, call.model, call.manifest.estimator


@contextmanager
def _only_logged(what: str) -> Iterator[None]:
    """Log an error of the block instead of raising it: clients would send the report, which is committed, again."""
    try:
        yield
    except (StoreUnavailable, asyncpg.PostgresError) as error:
        structlog.get_logger().warning(what, error=str(error))


_Record = Callable[[SessionRef], Awaitable[RecordedReport]]


async def _on_its_line(on: Executor, ref: SessionRef, address: str, call_id: UUID, record: _Record) -> RecordedReport:
    """Return what `record` returns for the row `ref` or, if that has no such call, for the line that made it."""
    try:
        return await record(ref)
    except NotFound:  # most calls are made on a session's first line
        line = None if is_line(address) else await lines.of_call(on, ref.tenant_id, address, call_id)
        if line is None or session_ref(ref.tenant_id, line) == ref:
            raise
        return await record(session_ref(ref.tenant_id, line))


def _no_call(address: str, call_id: UUID) -> NotFound:
    return NotFound(f"session {address!r} has no call {call_id}", call_id=str(call_id))
