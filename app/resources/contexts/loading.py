"""The inputs of contexts, loaded from the store or taken from a view held in memory."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeVar
from uuid import UUID

from app.core import dataclass, replace
from app.core.assembly.budget import budget_of, count_injections, injected_tokens, real_window
from app.core.assembly.inputs import (
    ContextInputs,
    ContextRequest,
    LastContext,
    LoadedView,
    ViewSettings,
    changed_setting,
    heals_in_part,
    heals_later,
    may_fold,
    summary_tree,
    wants_more,
    window_of,
)
from app.core.errors import Conflict, InvalidRequest, LineChanged, NotFound
from app.core.lexicon.times import to_seconds
from app.core.log.event import Event
from app.core.log.segments import is_line
from app.core.memory.digest.calls import modifications
from app.core.plan.state.drops import files_named
from app.core.render.formats import FORMATS
from app.core.render.layers import visible_layers
from app.core.tokens.counter import Counter
from app.core.tokens.models import UNKNOWN, CacheProfile, cache_profile, is_known_cache
from app.resources.contexts.view_cache import CachedView
from app.resources.layers.service import count_tokens
from app.resources.policies.service import ChosenPolicy, Policies
from app.store import spans, summaries, views
from app.store.answers import ResponseToStore
from app.store.engine import Connection, Executor
from app.store.ids import SessionRef, session_ref
from app.tokenizers import Counting

BOUND_FACTOR: Final = 2
"""Bound of the first read of the log, in windows of the request: stubs make room for more than one."""
DEEPEN_FACTOR: Final = 4
"""Factor by which the bound grows while the plan wants more of the log."""
DEEPEN_MAX: Final = 4
"""Number of further reads that may be followed by yet another, after which the rest of the log is left unread."""
CACHES_KEPT: Final = 1_024
"""Number of cache profiles that are remembered, by model and policy: each is looked up in a table of names."""
OFF_LOOP_TOKENS: Final = 30_000
OFF_LOOP_EVENTS: Final = 300
"""Larger contexts are planned and rendered in a thread, so that they do not delay other requests."""

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request for a context of the session row `row_name`; `policy` is the one it names or gives, None without one.

    `head`: the seq to end at if events have been appended after it. `keep`: the response, to be stored with the record.
    """

    tenant_id: UUID
    row_name: str
    request: ContextRequest
    policy: ChosenPolicy | None
    head: int | None = None
    keep: ResponseToStore[Any] | None = None

    @property
    def ref(self) -> SessionRef:
        """The ids of the session's row and of its tenant."""
        return session_ref(self.tenant_id, self.row_name)

    @property
    def now(self) -> float:
        """The time of the call, in epoch seconds."""
        return time.time() if self.request.now is None else to_seconds(self.request.now)


class InputsLoader:
    """Loads the inputs of contexts."""

    def __init__(
        self, counting: Counting, policies: Policies, caches: Mapping[str, CacheProfile], calls_kept_days: int
    ) -> None:
        self._counting = counting
        self._policies = policies
        self._cache_profile = lru_cache(CACHES_KEPT)(partial(cache_profile, table=caches))
        self._is_known_cache = lru_cache(CACHES_KEPT)(partial(is_known_cache, table=caches))
        self._calls_kept_days = calls_kept_days

    async def continued(self, resolved: ResolvedRequest, held: CachedView) -> ContextInputs | None:
        """Return the inputs of a held view's next context; None if the request changes the view's settings."""
        request, settings, now = resolved.request, held.settings, resolved.now
        policy_ref = settings.policy_ref if resolved.policy is None else resolved.policy.ref
        model = request.model or settings.model
        policy = settings.policy if resolved.policy is None else resolved.policy.policy
        window = request.window_for(policy, model) or settings.window_tokens
        window = real_window(held.loaded, model, window, now)
        if (policy_ref, model, window) != (settings.policy_ref, settings.model, settings.window_tokens):
            return None
        events = held.loaded.events
        if held.recounted is not None:
            events = held.recounted + await self._counting.recount(events[len(held.recounted) :], held.counter)
        return await self._inputs(resolved, held.loaded, settings, held.counter, events, held.last_context, now)

    async def load(
        self, connection: Executor, resolved: ResolvedRequest, held: CachedView | None = None
    ) -> ContextInputs:
        """Load a view, or bring the held one up to date, and read on until the plan needs no more of the log.

        Raises NotFound, LineChanged, InjectionOverReserve, InvalidPolicy, CannotFit, InvalidRequest for an `at` beyond
        the last event, or Conflict if the view kept changing.
        """
        request, ref, view = resolved.request, resolved.ref, resolved.request.view
        bound = (request.max_tokens or request.served_tokens or UNKNOWN.window_tokens) * BOUND_FACTOR
        ignores_epoch = False
        for attempt in range(DEEPEN_MAX + 2):
            loaded = None
            if held is not None and attempt == 0:
                loaded = await views.refresh(connection, resolved.tenant_id, view, held.loaded, request.model)
            if loaded is None:
                held = None
                loaded = await views.load(
                    connection, ref, view, at=request.at, fresh=ignores_epoch, bound_tokens=bound, model=request.model
                )
            loaded = _checked(loaded, resolved)
            settings = await self._settings(connection, resolved, loaded)
            erased = not all(one.text for one in loaded.folded)  # only in an earlier epoch (`at`)
            if not ignores_epoch and (erased or changed_setting(loaded.view, settings) is not None):
                ignores_epoch = True
                continue
            inputs = await self._counted(resolved, loaded, settings, held, ignores_epoch=ignores_epoch)
            if held is not None and heals_later(inputs):
                loaded = replace(loaded, cover=held.loaded.cover, finer=held.loaded.finer)
                return replace(inputs, loaded=loaded)
            if loaded.finer is None and may_fold(inputs):
                loaded = replace(loaded, finer=await summaries.superseded(connection, ref.session_id, loaded.head))
                inputs = replace(inputs, loaded=loaded)
            if not ignores_epoch and heals_in_part(inputs):
                ignores_epoch = True
                continue
            if not loaded.unread.to_seq:
                return inputs
            read_enough = attempt > DEEPEN_MAX or bound > loaded.log_tokens
            if read_enough or not await run_off_loop(inputs.events, partial(wants_more, inputs)):
                return await _with_unread_files(connection, inputs)
            bound *= DEEPEN_FACTOR
        raise Conflict("the view changed while it was read; retry the request")

    async def _settings(self, connection: Executor, resolved: ResolvedRequest, loaded: LoadedView) -> ViewSettings:
        request, given, view = resolved.request, resolved.policy, loaded.view
        policy_ref = given.ref if given else view.policy if view else loaded.session_policy
        tx = connection if isinstance(connection, Connection) else None
        policy = given.policy if given else await self._policies.get(resolved.tenant_id, policy_ref, tx)
        model = request.model or (view.model if view else None) or loaded.session_model
        window = window_of(view, policy_ref, policy, model, request.window_for(policy, model))
        return ViewSettings(policy_ref, policy, model, real_window(loaded, model, window, resolved.now))

    async def _counted(
        self,
        resolved: ResolvedRequest,
        loaded: LoadedView,
        settings: ViewSettings,
        held: CachedView | None,
        *,
        ignores_epoch: bool,
    ) -> ContextInputs:
        """Return the inputs with the events counted for the model of the settings."""
        counter = self._counting.counter(settings.model, settings.policy)
        known = held if held is not None and held.counter == counter else None
        events = loaded.events
        if counter != self._counting.session_counter(loaded.estimator, loaded.session_model):
            counted = (known.recounted or ()) if known else ()
            events = counted + await self._counting.recount(events[len(counted) :], counter)
        last, now = known.last_context if known else None, resolved.now
        return await self._inputs(resolved, loaded, settings, counter, events, last, now, ignores_epoch=ignores_epoch)

    async def _inputs(
        self,
        resolved: ResolvedRequest,
        loaded: LoadedView,
        settings: ViewSettings,
        counter: Counter,
        events: tuple[Event, ...],
        last: LastContext | None,
        now: float,
        *,
        ignores_epoch: bool = False,
    ) -> ContextInputs:
        request, policy = resolved.request, settings.policy
        otherwise = FORMATS[request.format].cache
        takes = count_injections(request.injections, counter)
        budget = budget_of(loaded, settings, request, counter, events, ignores_epoch=ignores_epoch, injected=sum(takes))
        shown = tuple(one for one in visible_layers(loaded.layers, loaded.turn) if one.kind in policy.layers)
        return ContextInputs(
            events=events,
            loaded=loaded,
            settings=settings,
            counter=counter,
            budget=budget,
            ignores_epoch=ignores_epoch,
            request=request,
            injected_tokens=injected_tokens(request.injections, takes, budget) if takes else 0,
            layers=shown,
            layer_tokens=await count_tokens(shown, counter) if shown else 0,
            last_context=last,
            now=now,
            cache=self._cache_profile(settings.model, policy.cache, otherwise=otherwise),
            cache_known=self._is_known_cache(settings.model, policy.cache, otherwise=otherwise),
            caching=loaded.learned is None or loaded.learned.caches is not False,
            keep_days=policy.kept_days(self._calls_kept_days),
        )


async def _with_unread_files(connection: Executor, inputs: ContextInputs) -> ContextInputs:
    """Add the files modified in unread events that no summary covers, for the note of the drops."""
    loaded = inputs.loaded
    floor, last = 0 if inputs.from_scratch else loaded.frontier.floor, loaded.unread.to_seq
    if floor >= last:
        return inputs
    first = max(floor, *(one.to_seq for one in summary_tree(inputs)), 0) + 1
    if first > last:
        return inputs
    shows = inputs.settings.policy.shows
    found = await spans.calls(connection, loaded.session_id, first, last)
    shown = [one for one in found if not shows.leaves_out(one.type, one.author)]
    files = await run_off_loop(shown, lambda: files_named(modifications(shown)))
    return replace(inputs, loaded=replace(loaded, unread=replace(loaded.unread, files=files)))


def _checked(loaded: LoadedView | None, resolved: ResolvedRequest) -> LoadedView:
    """Return a view that a context can be made of. Raises NotFound, LineChanged or InvalidRequest."""
    at = resolved.request.at
    if loaded is None:
        raise NotFound(f"there is no session {resolved.row_name!r}", session=resolved.row_name)
    if loaded.moved_to is not None and not is_line(resolved.row_name):
        raise LineChanged(loaded.moved_to)
    if at is not None and at > loaded.head:
        raise InvalidRequest(f"`at` is {at}, but the session's last event is {loaded.head}", field="at")
    return loaded


async def run_off_loop(events: Sequence[Event], work: Callable[[], Done]) -> Done:
    """Run work that takes time in proportion to its events, in a thread if they are many."""
    many = len(events) > OFF_LOOP_EVENTS or sum(event.tokens for event in events) > OFF_LOOP_TOKENS
    return await asyncio.to_thread(work) if many else work()
