"""A step in one request: the outcome of an earlier call, what has happened since, and the next context.

One transaction does all three in this order, so an agent's step is one commit. A context that cannot be made leaves the
outcome and the append recorded, unless the request's policy is unknown or invalid.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from uuid import UUID

import asyncpg

from app.core.assembly.inputs import ContextRequest
from app.core.errors import ContextError, LineChanged
from app.resources.contexts.loading import ResolvedRequest
from app.resources.contexts.service import Assembly, ContextAnswer, MadeContext
from app.resources.contexts.view_cache import CachedView, with_events, with_report
from app.resources.events.appends import Appended, AppendRequest
from app.resources.events.service import Appending, Ingest, PreparedAppend
from app.resources.feedback.measurements import Report, Verdict
from app.resources.feedback.service import Feedback, RecordedReport
from app.resources.lines.service import Lines
from app.store.answers import ResponseToStore
from app.store.engine import Connection, Database
from app.store.ids import SessionRef, session_ref

Part = Literal["outcome", "append", "context"]


@dataclass(frozen=True, slots=True)
class AgentStep:
    """The parts of a step, None for those that it does not have: the report of a call's outcome, with the call's id, an
    append, and a context. The context must not wait for a summary or force one: a worker must see the append."""

    outcome: tuple[UUID, Report] | None = None
    append: AppendRequest | None = None
    context: ContextRequest | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """The results of a step's parts."""

    verdict: Verdict | None = None
    appended: Appended | None = None
    answer: ContextAnswer | None = None


class StepFailed(Exception):
    """A part of a step failed with an expected error; `done` are the results of the parts that stay recorded."""

    def __init__(self, part: Part, error: ContextError, done: StepDone) -> None:
        super().__init__(part, error)
        self.part = part
        self.error = error
        self.done = done


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A step on a client's `address`, with what could be done before its transaction."""

    address: str
    outcome: tuple[UUID, Report] | None
    append: PreparedAppend | None
    context: ResolvedRequest | None
    keep: ResponseToStore[StepDone] | None


@dataclass(slots=True)
class _Made:
    """The parts of a step as its transaction has made them, or the error of its context."""

    report: RecordedReport | None = None
    appending: Appending | None = None
    context: MadeContext | None = None
    error: ContextError | None = None

    @property
    def results(self) -> StepDone:
        return StepDone(
            None if self.report is None else self.report.verdict,
            None if self.appending is None else self.appending.appended,
            None if self.context is None else self.context.answer,
        )


@dataclass(eq=False)
class Steps:
    """Takes agents' steps."""

    _database: Database
    _ingest: Ingest
    _assembly: Assembly
    _feedback: Feedback
    _lines: Lines

    async def take(
        self, tenant_id: UUID, address: str, step: AgentStep, keep: ResponseToStore[StepDone] | None = None
    ) -> StepDone:
        """Take a step on the line that a client's address means.

        `keep`: the response is stored with the context's record, or neither is. Raises StepFailed; nothing is recorded
        unless the context failed within the transaction. Raises AlreadyAnswered if the key of `keep` has been used.
        """
        key = None if step.append is None else step.append.key
        row_name = await self._lines.resolve_remembered(tenant_id, address, key)
        try:
            return await self._take(tenant_id, address, row_name, step, keep)
        except LineChanged as moved:
            row_name = await self._lines.remember_moved(tenant_id, address, moved.line, key)
        return await self._take(tenant_id, address, row_name, step, keep)

    async def _take(
        self, tenant_id: UUID, address: str, row_name: str, step: AgentStep, keep: ResponseToStore[StepDone] | None
    ) -> StepDone:
        ref = session_ref(tenant_id, row_name)
        with failing_part("append"):
            append = None if step.append is None else await self._ingest.prepare(tenant_id, row_name, step.append)
        with failing_part("context"):
            context = None if step.context is None else await self._assembly.resolve(tenant_id, row_name, step.context)
        prepared = _Prepared(address, step.outcome, append, context, keep)
        async with nullcontext() if append is None else self._ingest.exclusive(ref):
            try:
                made = await self._database.run_in_transaction(partial(self._make, ref, prepared))
            except asyncpg.UniqueViolationError:  # the key or an event's id has been used
                made = await self._database.run_in_transaction(partial(self._make, ref, prepared, locked=True))
            if made.context is not None:
                await self._assembly.hold(made.context)
            if made.appending is not None:
                self._ingest.finish(made.appending)
        if made.report is not None:
            await self._feedback.finish(made.report)
        if made.error is not None:
            raise StepFailed("context", made.error, made.results)
        return made.results

    async def _make(self, ref: SessionRef, step: _Prepared, tx: Connection, *, locked: bool = False) -> _Made:
        """Make the parts of a step. Raises StepFailed, which must roll the transaction back."""
        made = _Made()
        if step.outcome is not None:
            with failing_part("outcome"):
                made.report = await self._feedback.report_in(tx, ref, step.address, *step.outcome)
        if step.append is not None:
            with failing_part("append"):
                appending = None if locked else await self._ingest.append_unlocked(tx, step.append)
                made.appending = appending or await self._ingest.append_locked(tx, step.append)
        if step.context is None:
            return made
        held = self._assembly.held(step.context)
        if held is not None:
            held = _extend_by_step(held, step.context.request.view, made)
        resolved = step.context
        if step.keep is not None:
            done = made.results

            async def with_answer(answer: ContextAnswer) -> StepDone:
                return replace(done, answer=answer)

            resolved = replace(resolved, keep=step.keep.composed_with(with_answer))
        try:
            made.context = await self._assembly.context_in(tx, resolved, held)
        except LineChanged:
            raise
        except ContextError as error:
            made.error = error
        return made


@contextmanager
def failing_part(part: Part, done: StepDone = StepDone()) -> Iterator[None]:
    """Raise the block's expected errors as those of a part; `done` are the parts that stay recorded."""
    try:
        yield
    except LineChanged:
        raise
    except ContextError as error:
        raise StepFailed(part, error, done) from error


def _extend_by_step(held: CachedView, view: str, made: _Made) -> CachedView:
    """Return a held view with what a step has reported and appended, to be used within its transaction."""
    results = None if made.report is None else made.report.results
    if results is not None:
        held = with_report(held, view, results)
    added = None if made.appending is None else made.appending.added
    if added is None:
        return held
    return with_events(held, added) or replace(held, is_steady=False)
