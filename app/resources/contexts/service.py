"""Context requests: load the view, assemble, record, respond.

The call is durable before the response is sent. The next context is planned from the view held in memory, if there is
one, and its call is recorded only if the view has not changed. Otherwise the view is read first, by one request at a
time for each view and process; steps, which hold a transaction, do not wait for these. If another request opened an
epoch meanwhile, the view is read and planned again.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Final
from uuid import UUID

from app.core import dataclass, replace
from app.core.assembly.assemble import Assembled, assemble, assemble_plan, begin_plan, folds_more, reason_not_shown
from app.core.assembly.inputs import ContextInputs, ContextRequest, cover_bounds, heals
from app.core.errors import CannotFit, Conflict, ContextError, LineChanged, NothingToSend
from app.core.log.segments import is_line
from app.core.plan.pipeline import finish, finish_unchanged
from app.core.tokens.models import CacheProfile
from app.resources.contexts.loading import InputsLoader, ResolvedRequest, run_off_loop
from app.resources.contexts.view_cache import CachedView, ViewCache, after_context
from app.resources.lines.service import Lines
from app.resources.policies.service import Policies
from app.resources.summaries.requests import SummaryRequests
from app.resources.summaries.service import Compaction
from app.store import calls, compactions
from app.store.answers import ResponseToStore
from app.store.calls import NewResponse
from app.store.engine import Connection, Database, Executor
from app.store.ids import SessionRef, new_id
from app.tokenizers import Counting
from app.tracing import TraceSpan, tracer

ATTEMPTS_MAX: Final = 64
"""Attempts at recording a call; one fails if another request has opened an epoch, or if the session is gone."""
PLAN: Final = "plan"
"""The name of the span around planning."""


@dataclass(frozen=True, slots=True)
class ContextAnswer:
    """A context of the session row `row_name`.

    `compaction`: none, scheduled, running, or failed if the last run failed; in a stored response, as before the call.
    `reason`: why the context does not show a requested compaction. `held`: made from the view held in memory.
    """

    row_name: str
    assembled: Assembled
    compaction: str
    reason: str | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class MadeContext:
    """A recorded context, and the newest known state of compaction, which the held view gets.

    `is_steady`: as far as this process knows, nothing was appended through another one since the view was held.
    """

    answer: ContextAnswer
    compaction: str
    is_steady: bool = True


KeepContext = ResponseToStore[ContextAnswer]
ContextCallback = Callable[[ContextRequest, ContextAnswer | ContextError], None]
"""Callback for the outcome of each context request."""


class Assembly:
    """Assembles and records contexts."""

    def __init__(
        self,
        database: Database,
        counting: Counting,
        policies: Policies,
        view_cache: ViewCache,
        caches: Mapping[str, CacheProfile],
        compaction: Compaction,
        lines: Lines,
        calls_kept_days: int = 0,
        on_outcome: ContextCallback = lambda _, __: None,
    ) -> None:
        self._on_outcome = on_outcome
        self._lines = lines
        self._database = database
        self._policies = policies
        self._view_cache = view_cache
        self._summaries = SummaryRequests(database, compaction)
        self._loader = InputsLoader(counting, policies, caches, calls_kept_days)

    async def context(
        self,
        tenant_id: UUID,
        address: str,
        request: ContextRequest,
        head: int | None = None,
        keep: KeepContext | None = None,
    ) -> ContextAnswer:
        """Return the view's next context, recorded, on the line that a client's address means.

        `head`: the seq to end at if events have been appended after it. `keep`: the response is stored with the record,
        or neither is. Raises AlreadyAnswered if the key has been used, NotFound, NothingToSend, CannotFit,
        InjectionOverReserve, InvalidPolicy, Conflict if others change the view meanwhile, or InvalidRequest for an `at`
        beyond the last event.
        """
        try:
            row_name = await self._lines.resolve_remembered(tenant_id, address)
            resolved = replace(await self.resolve(tenant_id, row_name, request), head=head, keep=keep)
            made = await self._continue(self._database, resolved, self.held(resolved))
            if made is not None:
                await self.hold(made)
            else:
                try:
                    made = await self._make_and_hold(resolved)
                except LineChanged as moved:
                    row_name = await self._lines.remember_moved(tenant_id, address, moved.line)
                    made = await self._make_and_hold(replace(resolved, row_name=row_name))
        except ContextError as error:
            self._on_outcome(request, error)
            raise
        self._on_outcome(request, made.answer)
        return made.answer

    async def context_in(self, tx: Connection, resolved: ResolvedRequest, held: CachedView | None) -> MadeContext:
        """Make and record a context within a transaction, from a view as it is there. Call `hold` after the commit.

        Raises what `context` raises, and LineChanged. The request must not wait for a summary, nor force one.
        """
        try:
            made = await self._continue(tx, resolved, held) or await self._make(tx, resolved, held, None)
        except ContextError as error:
            self._on_outcome(resolved.request, error)
            raise
        self._on_outcome(resolved.request, made.answer)
        return made

    async def resolve(self, tenant_id: UUID, row_name: str, request: ContextRequest) -> ResolvedRequest:
        """Return the request with its session row and policy. Raises NotFound or InvalidPolicy."""
        policy = None if request.policy is None else await self._policies.chosen(tenant_id, request.policy)
        return ResolvedRequest(tenant_id, row_name, request, policy)

    def held(self, resolved: ResolvedRequest) -> CachedView | None:
        """Return the view held in memory for a request; None if it must be read."""
        apart = resolved.request.at is not None or resolved.request.wait_ms is not None
        return None if apart else self._view_cache.get(resolved.ref.session_id, resolved.request.view)

    async def hold(self, made: MadeContext) -> None:
        """Hold the view in memory as a recorded context left it."""
        assembled = made.answer.assembled
        if assembled.inputs.request.at is not None:
            return
        view = partial(after_context, assembled, made.compaction, is_steady=made.is_steady)
        read = view() if assembled.epoch is None else await run_off_loop(assembled.inputs.events, view)
        self._view_cache.put(assembled.inputs.request.view, read)

    async def _continue(
        self, connection: Executor, resolved: ResolvedRequest, held: CachedView | None
    ) -> MadeContext | None:
        """Make and record a context from the view held in memory; None if the view must be read.

        It must be read if it is not held or not steady; if the request retries a call, ends at another event, changes a
        setting (`InputsLoader.continued`), or names a session that means another line by now; if a summary covers
        dropped events (`heals`); if the provider's cache may be cold or the budget requires a reduction, since there
        may be new summaries; and if nothing can be sent. That the database still has the state that was read is checked
        by `store/calls.record_if_unchanged`.
        """
        if held is None or not held.is_steady or resolved.head not in (None, held.loaded.head):
            return None
        loaded = held.loaded
        if resolved.request.retry is not None:
            return None
        if loaded.moved_to is not None and not is_line(resolved.row_name):
            return None
        inputs = await self._loader.continued(resolved, held)
        if inputs is None:
            return None
        cover = cover_bounds(inputs)
        if cover is not None and heals(inputs):
            return None
        with tracer.get().span(PLAN) as span:
            begun = await run_off_loop(inputs.added, partial(begin_plan, inputs))
            if begun.at.moment != "warm":
                return None
            plan = finish_unchanged(begun) if inputs.last_context else None
            try:
                if plan is not None:
                    assembled = assemble_plan(inputs, plan, new_id())
                else:
                    assembled = await run_off_loop(
                        inputs.events, lambda: assemble_plan(inputs, finish(begun), new_id())
                    )
            except (CannotFit, NothingToSend):
                return None
            if span.is_recording:
                _trace_plan(span, assembled)
        answer = ContextAnswer(resolved.row_name, assembled, loaded.compaction, reason_not_shown(assembled), held=True)
        kept = await _new_response(resolved, answer)
        compaction = await calls.record_if_unchanged(connection, resolved.tenant_id, assembled, cover, kept)
        if compaction is None:
            return None
        return MadeContext(answer if resolved.keep is not None else replace(answer, compaction=compaction), compaction)

    async def _make_and_hold(self, resolved: ResolvedRequest) -> MadeContext:
        """Wait for a summary if requested, then make, record and hold a context; one request of a view at a time."""
        request, reason_of_wait = resolved.request, None
        if request.wait_ms is not None and request.at is None:
            inputs = await self._loader.load(self._database, resolved)
            reason_of_wait = await self._summaries.wait(resolved.tenant_id, inputs, request.wait_ms)
        async with self._view_cache.epoch_lock(resolved.ref.session_id, request.view):
            made = await self._make(self._database, resolved, self.held(resolved), reason_of_wait)
            await self.hold(made)
        return made

    async def _make(
        self, connection: Executor, resolved: ResolvedRequest, held: CachedView | None, reason_of_wait: str | None
    ) -> MadeContext:
        """Read the view, make a context from it, and record it, until no other request opens an epoch meanwhile.

        Under pressure it also queues a compaction.
        """
        for attempt in range(ATTEMPTS_MAX):
            inputs = await self._loader.load(connection, resolved, None if attempt else held)
            if resolved.head not in (None, inputs.loaded.head):  # the log has grown: end at `head` instead
                resolved, held = replace(resolved, request=replace(resolved.request, at=resolved.head)), None
                inputs = await self._loader.load(connection, resolved)
            loaded, assembled = inputs.loaded, await self._plan(inputs)
            # One transaction: the worker of a forced run reads from the call's record for which window to summarize.
            async with self._database.transaction() if resolved.request.force else nullcontext() as tx:
                answer = await self._answer(tx, resolved, assembled, reason_of_wait)
                new = await _new_response(resolved, answer)
                if not await calls.record(tx or connection, resolved.tenant_id, assembled, new):
                    continue
            planned = assembled.rendered.plan
            pressed = planned.moment == "pressed" and (assembled.epoch is not None or planned.stalled is not None)
            if pressed and inputs.settings.policy.summarize.enabled:
                await compactions.enqueue(connection, SessionRef(loaded.session_id, resolved.tenant_id))
            is_steady = held is None or held.loaded.head == loaded.head
            return MadeContext(answer, loaded.compaction, is_steady)
        raise Conflict("concurrent calls kept opening epochs of this view; retry the request")

    async def _plan(self, inputs: ContextInputs) -> Assembled:
        with tracer.get().span(PLAN) as span:
            assembled = await run_off_loop(inputs.events, partial(assemble, inputs, new_id()))
            if span.is_recording:
                _trace_plan(span, assembled)
            return assembled

    async def plan(self, tenant_id: UUID, row_name: str, request: ContextRequest) -> Assembled:
        """Plan and render the context without recording or caching it. Raises what `context` raises, or LineChanged."""
        return await self._plan(await self.load_inputs(tenant_id, row_name, request))

    async def load_inputs(
        self, tenant_id: UUID, row_name: str, request: ContextRequest, *, from_memory: bool = False
    ) -> ContextInputs:
        """Load the inputs of a context without making it. Raises what `InputsLoader.load` raises.

        `from_memory`: if the view is held in memory, only read the rest.
        """
        given = None if request.policy is None else await self._policies.read(tenant_id, request.policy)
        resolved = ResolvedRequest(tenant_id, row_name, request, given)
        return await self._loader.load(self._database, resolved, self.held(resolved) if from_memory else None)

    async def _answer(
        self, tx: Connection | None, resolved: ResolvedRequest, assembled: Assembled, reason_of_wait: str | None
    ) -> ContextAnswer:
        """Return the answer, and schedule the run that the request forces, in `tx`, which is given only then."""
        request, state, reason = resolved.request, assembled.inputs.loaded.compaction, reason_of_wait
        if tx is None or request.at is not None:
            reason = reason_not_shown(assembled)
        elif request.wait_ms is None:
            state, reason = await self._summaries.force(tx, resolved.tenant_id, assembled)
        elif folds_more(assembled):
            reason = None
        return ContextAnswer(resolved.row_name, assembled, state, reason)


def _trace_plan(span: TraceSpan, assembled: Assembled) -> None:
    call = assembled.call
    span.set(
        palimpsest__call__id=str(call.call_id),
        palimpsest__call__head=call.head,
        palimpsest__epoch__number=call.epoch,
        palimpsest__epoch__opened=assembled.epoch is not None,
        palimpsest__tokens__sent=call.estimate,
        palimpsest__tokens__log=assembled.inputs.loaded.log_tokens,
    )


async def _new_response(resolved: ResolvedRequest, answer: ContextAnswer) -> NewResponse | None:
    return None if resolved.keep is None else (resolved.keep.claim, await resolved.keep.to_response(answer))
