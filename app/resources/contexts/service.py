"""Context requests: load the view, assemble, record, respond.

The call is durable before the response is sent. A view held in memory is planned on without reading it again; the call
is then recorded only if the view has not changed. Otherwise the view is read, for one request at a time of each view
and process. If another process opened an epoch meanwhile, the view is read and planned again.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

from app import tracing
from app.core.assembly.assemble import Assembled, begin_plan, continue_assembly, finish_assembly
from app.core.assembly.budget import budget_of, injected_tokens, injections_counted, outside_of, real_window
from app.core.assembly.inputs import (
    ContextInputs,
    ContextRequest,
    LoadedView,
    ViewSettings,
    changed_setting,
    covered,
    heals,
    heals_in_part,
    may_fold,
    may_heal,
    summary_tree,
    wants_more,
    window_of,
)
from app.core.errors import CannotFit, Conflict, ContextError, InvalidRequest, LineChanged, NotFound, NothingToSend
from app.core.lexicon.times import to_seconds
from app.core.log.event import Event
from app.core.log.segments import is_line
from app.core.memory.digest.digest import modifications
from app.core.plan.state.drops import files_named
from app.core.render.formats import FORMATS
from app.core.render.layers import visible_layers
from app.core.tokens.models import CacheProfile, cache_profile
from app.resources.contexts.planning import PLAN, new_events, plan_context, record_plan, run_off_loop
from app.resources.contexts.view_cache import CachedView, ViewCache
from app.resources.contexts.view_updates import cached_view
from app.resources.layers.service import count_tokens as counted_layers
from app.resources.lines.service import Lines
from app.resources.policies.service import ChosenPolicy, Policies
from app.resources.summaries.requests import SummaryRequests, folds_more, reason_not_shown
from app.resources.summaries.service import Compaction
from app.services.counting import Counting
from app.services.idempotency import ResponseToStore
from app.store import calls, compactions, sessions, spans, summaries, views
from app.store.calls import NewAnswer
from app.store.engine import Database
from app.store.ids import new_id

ATTEMPTS_MAX: Final = 64
"""Attempts at recording a call; each fails because another process has opened an epoch, or the session is gone."""
BOUND_FACTOR: Final = 2
"""Tokens of the log read at first after an epoch, in windows of the request: stubs make room for more than one."""
DEEPEN_FACTOR: Final = 4
DEEPEN_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class ContextAnswer:
    """A context of session row `session`.

    `compaction`: none, scheduled, running, or failed if the last run failed. `reason`: why a requested compaction has
    no effect. `held`: the context was made from the view held in memory.
    """

    session: str
    assembled: Assembled
    compaction: str
    reason: str | None = None
    held: bool = False


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
        self._counting = counting
        self._policies = policies
        self._view_cache = view_cache
        self._caches = caches
        self._summaries = SummaryRequests(database, compaction)
        self._calls_kept_days = calls_kept_days

    async def context(
        self,
        tenant_id: UUID,
        external_id: str,
        request: ContextRequest,
        head: int | None = None,
        keep: KeepContext | None = None,
    ) -> ContextAnswer:
        """Return the view's next context, recorded, on the line that a session's name means.

        `head`: the seq to end at if events have been appended after it. `keep`: the response is stored with the record,
        or neither is. Raises AlreadyAnswered if the key has been used, NotFound, NothingToSend, CannotFit,
        InjectionOverReserve, InvalidPolicy, Conflict if others change the view meanwhile, or InvalidRequest for an `at`
        beyond the last event.
        """
        try:
            answer = await self._context_on_line(tenant_id, external_id, request, head, keep)
        except ContextError as error:
            self._on_outcome(request, error)
            raise
        self._on_outcome(request, answer)
        return answer

    async def _context_on_line(
        self, tenant_id: UUID, external_id: str, request: ContextRequest, head: int | None, keep: KeepContext | None
    ) -> ContextAnswer:
        line = await self._lines.resolve_remembered(tenant_id, external_id)
        try:
            return await self._context(tenant_id, line, request, head, keep)
        except LineChanged as moved:
            line = await self._lines.remember_moved(tenant_id, external_id, moved.line)
        return await self._context(tenant_id, line, request, head, keep)

    async def _context(
        self, tenant_id: UUID, external_id: str, request: ContextRequest, head: int | None, keep: KeepContext | None
    ) -> ContextAnswer:
        session_id = sessions.session_key(tenant_id, external_id)
        given = None if request.policy is None else await self._policies.chosen(tenant_id, request.policy)
        held = self._view_cache.get(session_id, request.view) if request.at is None else None
        reason = None
        if request.wait_ms is not None and request.at is None:
            inputs = await self._load(tenant_id, session_id, external_id, request, given, None)
            reason = await self._summaries.wait(tenant_id, inputs, request.wait_ms)
            held = None
        if held is not None and held.is_current and request.retry is None and head in (None, held.loaded.head):
            answer = await self._context_from_cache(tenant_id, external_id, held, request, given, keep)
            if answer is not None:
                return answer
        async with self._view_cache.epoch_lock(session_id, request.view):
            if request.at is None and request.wait_ms is None:  # the previous request may have updated it
                held = self._view_cache.get(session_id, request.view)
            for attempt in range(ATTEMPTS_MAX):
                inputs = await self._load(tenant_id, session_id, external_id, request, given, None if attempt else held)
                if head not in (None, inputs.loaded.head):  # the log has grown: end at `head` instead
                    request, held = replace(request, at=head), None
                    inputs = await self._load(tenant_id, session_id, external_id, request, given, None)
                assembled = await plan_context(inputs)
                answer = await self._make_answer(tenant_id, external_id, assembled, reason)
                if await self._record(tenant_id, answer, held, keep):
                    return answer
        raise Conflict("concurrent calls kept opening epochs of this view; retry the request")

    async def _make_answer(
        self, tenant_id: UUID, external_id: str, assembled: Assembled, reason: str | None
    ) -> ContextAnswer:
        request, state = assembled.inputs.request, assembled.inputs.loaded.compaction
        if not request.force or request.at is not None:
            reason = reason_not_shown(assembled)
        elif request.wait_ms is None:
            state, reason = await self._summaries.force(tenant_id, assembled)
        elif folds_more(assembled):
            reason = None
        return ContextAnswer(external_id, assembled, state, reason)

    async def plan(self, tenant_id: UUID, external_id: str, request: ContextRequest) -> Assembled:
        """Plan and render the context without recording or caching it. Raises what `context` raises."""
        return await plan_context(await self.load_inputs(tenant_id, external_id, request))

    async def load_inputs(self, tenant_id: UUID, external_id: str, request: ContextRequest) -> ContextInputs:
        """Load the inputs of a context, whether or not it can be made from them.

        Raises NotFound, InjectionOverReserve, InvalidPolicy, or InvalidRequest for an `at` beyond the last event.
        """
        session_id = sessions.session_key(tenant_id, external_id)
        given = None if request.policy is None else await self._policies.read(tenant_id, request.policy)
        return await self._load(tenant_id, session_id, external_id, request, given, None)

    async def _context_from_cache(
        self,
        tenant_id: UUID,
        external_id: str,
        held: CachedView,
        request: ContextRequest,
        given: ChosenPolicy | None,
        keep: KeepContext | None,
    ) -> ContextAnswer | None:
        """Make and record a context from the held view; None if the view must be read, as it changed or may fold."""
        if keep is not None and held.loaded.compaction != "none":  # the stored response would need its state
            return None
        if held.loaded.moved_to is not None and not is_line(external_id):
            return None
        settings = await self._settings(tenant_id, held.loaded, request, given)
        if changed_setting(held.loaded.view, settings) is not None:
            return None
        inputs = await self._inputs(held.loaded, settings, request, held, fresh=False)
        lost = may_heal(held.loaded.frontier)
        if lost and heals(inputs):
            return None
        with tracing.span(PLAN) as span:
            begun = await run_off_loop(new_events(inputs), partial(begin_plan, inputs))
            if begun.at.moment != "warm":  # there may be summaries by now
                return None
            try:
                assembled = continue_assembly(inputs, begun, new_id()) if inputs.last_context else None
                if assembled is None:
                    assembled = await asyncio.to_thread(finish_assembly, inputs, begun, new_id())
            except (CannotFit, NothingToSend):  # events appended elsewhere meanwhile may change that
                return None
            record_plan(span, assembled)
        estimator = inputs.counter.estimator.name
        made, reaches = (assembled.call, assembled.epoch), covered(inputs) if lost else None
        answer = ContextAnswer(external_id, assembled, "none", reason_not_shown(assembled), held=True)
        kept = await _new_answer(keep, answer)
        compaction = await calls.record_if_current(
            self._database, tenant_id, *made, held.loaded, estimator, reaches, kept
        )
        if compaction is None:
            return None
        await self._cache_view(assembled, compaction, steady=True)
        return replace(answer, compaction=compaction)

    async def _load(
        self,
        tenant_id: UUID,
        session_id: UUID,
        external_id: str,
        request: ContextRequest,
        given: ChosenPolicy | None,
        held: CachedView | None,
    ) -> ContextInputs:
        """Read the view until the plan needs no more of the log."""
        bound = (request.max_tokens or 128_000) * BOUND_FACTOR
        fresh = False
        for deepening in range(DEEPEN_MAX + 2):
            loaded = None
            if held is not None and deepening == 0:
                loaded = await views.refresh(self._database, tenant_id, request.view, held.loaded, request.model)
            if loaded is None:
                held = None
                loaded = await views.load(
                    self._database,
                    session_id,
                    tenant_id,
                    request.view,
                    at=request.at,
                    fresh=fresh,
                    bound_tokens=bound,
                    model=request.model,
                )
            if loaded is None:
                raise NotFound(f"there is no session {external_id!r}", session=external_id)
            if loaded.moved_to is not None and not is_line(external_id):
                raise LineChanged(loaded.moved_to)
            if request.at is not None and request.at > loaded.head:
                raise InvalidRequest(f"`at` is {request.at}, but the session's last event is {loaded.head}", field="at")
            settings = await self._settings(tenant_id, loaded, request, given)
            erased = not all(one.text for one in loaded.folded)  # of an epoch before the view's current one (`at`)
            if not fresh and (erased or changed_setting(loaded.view, settings) is not None):
                fresh = True
                continue
            inputs = await self._inputs(loaded, settings, request, held, fresh=fresh)
            if loaded.finer is None and may_fold(inputs):
                loaded = replace(loaded, finer=await summaries.superseded(self._database, session_id, loaded.head))
                inputs = replace(inputs, loaded=loaded)
            if not fresh and heals_in_part(inputs):
                fresh = True
                continue
            if not loaded.unread.to_seq:
                return inputs
            read_enough = deepening > DEEPEN_MAX or bound > loaded.log_tokens
            if read_enough or not await run_off_loop(inputs.events, partial(wants_more, inputs)):
                return await self._with_unread_files(inputs)
            bound *= DEEPEN_FACTOR
        raise Conflict("the view changed while it was read; retry the request")

    async def _with_unread_files(self, inputs: ContextInputs) -> ContextInputs:
        """Add the files modified in unread events that no summary covers, for the note of the drops."""
        loaded = inputs.loaded
        floor, last = 0 if inputs.from_scratch else loaded.frontier.floor, loaded.unread.to_seq
        if floor >= last:
            return inputs
        first = max(floor, *(one.to_seq for one in summary_tree(inputs)), 0) + 1
        if first > last:
            return inputs
        shows = inputs.settings.policy.shows
        found = await spans.calls(self._database, loaded.session_id, first, last)
        shown = [one for one in found if not shows.leaves_out(one.type, one.author)]
        files = await run_off_loop(shown, lambda: files_named(modifications(shown)))
        return replace(inputs, loaded=replace(loaded, unread=replace(loaded.unread, files=files)))

    async def _settings(
        self, tenant_id: UUID, loaded: LoadedView, request: ContextRequest, given: ChosenPolicy | None
    ) -> ViewSettings:
        view = loaded.view
        ref = given.ref if given else view.policy if view else loaded.session_policy
        policy = given.policy if given else await self._policies.get(tenant_id, ref)
        model = request.model or (view.model if view else None) or loaded.session_model
        window = window_of(view, ref, policy, model, request.max_tokens)
        return ViewSettings(ref, policy, model, real_window(loaded, model, window, call_time(request)))

    async def _inputs(
        self,
        loaded: LoadedView,
        settings: ViewSettings,
        request: ContextRequest,
        held: CachedView | None,
        *,
        fresh: bool,
    ) -> ContextInputs:
        counter = self._counting.counter(settings.model, settings.policy)
        counted: tuple[Event, ...] = ()
        standing = None
        if held is not None and held.counter == counter:
            counted, standing = held.counted, held.incremental_state
        events = loaded.events
        if counter != self._counting.session_counter(loaded.estimator, loaded.session_model):
            events = counted + await self._counting.recount(events[len(counted) :], counter)
        takes = injections_counted(request.injections, counter)
        budget = budget_of(loaded, settings, request, counter, events, fresh=fresh, injected=sum(takes))
        injected = injected_tokens(request.injections, takes, budget)
        shown = tuple(one for one in visible_layers(loaded.layers, loaded.turn) if one.kind in settings.policy.layers)
        layered = await counted_layers(shown, counter)
        cache = cache_profile(settings.model, settings.policy.cache, self._caches, FORMATS[request.format].cache)
        return ContextInputs(
            events=events,
            loaded=loaded,
            settings=settings,
            counter=counter,
            budget=budget,
            fresh=fresh,
            request=request,
            injected_tokens=injected,
            layers=shown,
            layer_tokens=layered,
            last_context=standing,
            now=call_time(request),
            cache=cache,
            keep_days=settings.policy.kept_days(self._calls_kept_days),
            outside_by=outside_of(loaded, settings, request).source,
        )

    async def _record(
        self, tenant_id: UUID, answer: ContextAnswer, held: CachedView | None, keep: KeepContext | None
    ) -> bool:
        """Record the call; False if another request opened an epoch of the view meanwhile, or the session is gone."""
        assembled = answer.assembled
        inputs, planned, loaded = assembled.inputs, assembled.rendered.plan, assembled.inputs.loaded
        kept = await _new_answer(keep, answer)
        if not await calls.record(self._database, tenant_id, assembled.call, assembled.epoch, loaded, kept):
            return False
        pressed = planned.moment == "pressed" and (assembled.epoch is not None or planned.stalled is not None)
        if pressed and inputs.settings.policy.summarize.enabled:
            await compactions.enqueue(self._database, loaded.session_id, tenant_id)
        if inputs.request.at is None:
            await self._cache_view(assembled, loaded.compaction, steady=held is None or held.loaded.head == loaded.head)
        return True

    async def _cache_view(self, assembled: Assembled, compaction: str, *, steady: bool) -> None:
        cached = partial(cached_view, assembled, compaction, steady)
        view = cached() if assembled.epoch is None else await run_off_loop(assembled.inputs.events, cached)
        self._view_cache.put(assembled.inputs.request.view, view)


def call_time(request: ContextRequest) -> float:
    """Return the time of a call, in epoch seconds."""
    return to_seconds(request.now) if request.now is not None else time.time()


async def _new_answer(keep: KeepContext | None, answer: ContextAnswer) -> NewAnswer | None:
    return None if keep is None else (keep.claim, await keep.answer(answer))
