"""From what was loaded to the bytes of a request: plan, arrange, write. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from app.core.audit.manifest import Eviction, evictions, unfit
from app.core.cover.summaries import Summary
from app.core.errors import CannotFit, InjectionOverReserve, NothingToSend
from app.core.log.event import Event
from app.core.log.events import Draft, EventType
from app.core.plan.context.drops import EXPIRY
from app.core.plan.context.frontier import START, Frontier, first_changed
from app.core.plan.context.reconcile import UNREAD
from app.core.plan.pipeline import EarlierPlan, Plan, PlanInputs, plan, standing
from app.core.plan.reducers.economics import Moment
from app.core.plan.reducers.fold import FoldReducer
from app.core.policy.policy import Policy
from app.core.recall.tool import has_recall
from app.core.render.arrange import arrange
from app.core.render.breakpoints import LOOKBACK_BLOCKS, Marking, choose
from app.core.render.formats.fit import fit, in_steps
from app.core.render.formats.layout import Breakpoint, Layout
from app.core.render.layers import Content, Layer
from app.core.render.request import injected, told, write
from app.core.tokens.budget import Budget
from app.core.tokens.cache_profiles import ANTHROPIC, CacheProfile
from app.core.tokens.counter import Counter
from app.store.summaries import cover_id
from app.store.views import LoadedView


@dataclass(frozen=True, slots=True)
class Injection:
    """Content for this call only, beside the user's message at the end."""

    name: str
    content: Content
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """An earlier call that was too long: what we had counted for it, and what its provider did, if it said so."""

    call_id: UUID
    counted: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What a caller asks for; None means: as the view has it."""

    view: str = "main"
    format: str = "openai"
    model: str | None = None
    max_tokens: int | None = None
    at: int | None = None
    policy: str | Mapping[str, Any] | None = None
    force: bool = False
    now: datetime | None = None
    injections: tuple[Injection, ...] = ()
    wait_ms: int | None = None
    retry: Retry | None = None
    outside_tokens: int | None = None
    recall: bool = False


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """What a view is read with."""

    policy_ref: tuple[str, int]
    policy: Policy
    model: str | None
    window_tokens: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A planned and written context. `request` is the canonical JSON of what goes to the provider.

    `evictions` are the plan's, `unfit` is what the format has no place for. `tokens` and `by_source` are the plan's and
    what was injected beside it, by the job's counter.
    """

    plan: Plan
    tokens: int
    by_source: Mapping[str, int]
    request: str
    sha256: bytes
    prefix_sha256: bytes
    breakpoints: tuple[Breakpoint, ...]
    evictions: tuple[Eviction, ...]
    unfit: tuple[Eviction, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class ContextInputs:
    """All inputs of a context. `fresh`: the view's epoch is disregarded.

    `layers` are those it shows. They are part of what must fit, `layer_tokens` of it; what is injected has a reserve of
    its own, which is not the plan's to know. `keep_days`: how long the call's record is kept at least; None: for ever.
    `outside_by`: who says what is sent beside the request (`services/calibrated`).
    """

    events: tuple[Event, ...]
    loaded: LoadedView
    settings: ViewSettings
    counter: Counter
    budget: Budget
    fresh: bool
    request: ContextRequest
    injected_tokens: int = 0
    layers: tuple[Layer, ...] = ()
    layer_tokens: int = 0
    before: EarlierPlan | None = None
    now: float = 0.0
    cache: CacheProfile = CacheProfile()
    keep_days: int | None = None
    outside_by: str | None = None

    @property
    def anew(self) -> bool:
        """Whether it is planned from nothing: with other settings, or under a policy the session was given since."""
        return self.fresh or (self.request.at is None and self.loaded.epoch == 0)


def render(job: ContextInputs) -> Rendered:
    """Plan and write: pure."""
    planned = planned_for(job)
    if not any(item.shown for item in planned.context.items) and job.request.format != "blocks":
        raise NothingToSend("the session holds nothing yet that could be sent to a model")
    shown = told(planned.notice, _contents(job.request.injections), job.layers)
    fitted = fit(arrange(planned.context, planned.state, shown), job.request.format)
    layout = in_steps(fitted.layout, job.request.format)
    by_source = planned.context.by_source
    written = write(job.request.format, layout, _breakpoints(job, planned, layout))
    return Rendered(
        plan=planned,
        tokens=planned.context.tokens + job.injected_tokens,
        by_source={**by_source, "ephemeral": by_source["ephemeral"] + job.injected_tokens},
        request=written.text,
        sha256=written.sha256,
        prefix_sha256=written.prefix_sha256,
        breakpoints=written.breakpoints,
        evictions=evictions(planned.state, planned.context),
        unfit=unfit(fitted.losses, job.request.format),
        layout=layout,
    )


def _contents(injections: tuple[Injection, ...]) -> list[tuple[str, Content]]:
    return [(injection.name, injection.content) for injection in injections]


def planned_for(job: ContextInputs) -> Plan:
    """The plan alone."""
    read, state = read_of(job)
    return plan(read, job.budget, job.settings.policy, state, force=job.request.force)


def moment_of(job: ContextInputs) -> Moment:
    """What the plan is made for; also where nothing legal fits."""
    try:
        return planned_for(job).moment
    except CannotFit:
        return "pressed"


def read_of(job: ContextInputs) -> tuple[PlanInputs, Frontier]:
    """What a plan is made of, and the state it starts from."""
    loaded = job.loaded
    used_at = loaded.used_at
    state = loaded.frontier
    if job.anew:
        state = replace(START, began=loaded.head)
        used_at = None if loaded.view is None else -math.inf  # other settings: what was cached is of no use
    read = PlanInputs(
        job.events,
        loaded.turn,
        job.counter,
        loaded.unread,
        job.layer_tokens,
        job.before,
        job.now,
        used_at,
        job.cache,
        tree_of(job),
        () if job.anew else loaded.folded,
        loaded.decided,
        loaded.decisions,
        job.budget.outside,
        job.request.recall or job.settings.policy.recall or has_recall(job.events),
    )
    return read, state


def tree_of(job: ContextInputs) -> tuple[Summary, ...]:
    """The live summaries of what the view shows, and those that they were made of."""
    loaded = job.loaded
    own = str(cover_id(loaded.session_id, job.settings.policy.shows))
    return tuple(s for s in (*(loaded.finer or ()), *loaded.cover) if s.cover_id == own and s.to_seq <= loaded.head)


def may_heal(state: Frontier) -> bool:
    """Whether something was dropped that a summary may have been written of since."""
    return any(drop.reducer != EXPIRY for drop in state.drops)


def heals_in_part(job: ContextInputs) -> bool:
    """Whether a summary stands for some of what was dropped by now, and none for the rest of it: healing writes all
    that is shown anew, so that the rest may come back."""
    if job.request.at is not None or not may_heal(job.loaded.frontier):
        return False
    folding = FoldReducer(tree_of(job), job.settings.policy.summarize)
    lost_to, drops = folding.healing(job.loaded.frontier), job.loaded.frontier.drops
    return lost_to > 0 and any(drop.to_seq > folding.last and drop.reducer != EXPIRY for drop in drops)


def may_fold(job: ContextInputs) -> bool:
    """Whether summaries may take their place in this context, or others theirs."""
    loaded, before = job.loaded, job.before
    if not loaded.cover:
        return False
    if job.anew or job.request.at is not None or job.request.force or may_heal(loaded.frontier):
        return True
    start = 0 if before is None else before.count
    tokens = loaded.frontier.summary_tokens if before is None else before.context.tokens
    return tokens + sum(event.tokens for event in job.events[start:]) > job.budget.goal


def wants_more(job: ContextInputs) -> bool:
    """Whether older events that were not read would still have their place: all that was read fits as it is, or the
    newest round was read in part only."""
    read, state = read_of(job)
    whole = standing(read, job.budget, job.settings.policy, state)
    newest = next((event.seq for event in reversed(job.events) if event.rendered), 0)
    cut = any(d.from_seq <= newest <= d.to_seq and d.reason == UNREAD for d in whole.state.drops)
    return cut or whole.context.tokens <= job.budget.trigger


def _breakpoints(job: ContextInputs, planned: Plan, layout: Layout) -> tuple[Breakpoint, ...]:
    if job.request.format != "anthropic":
        return ()
    same_epoch = planned.cause is None and not job.anew
    changed = 0 if same_epoch or job.anew else first_changed(job.loaded.frontier, planned.state)
    marking = Marking(
        markers=job.settings.policy.markers,
        markers_max=job.cache.markers,
        lookback=job.cache.lookback_blocks or LOOKBACK_BLOCKS,
        changed_seq=changed,
        turn_seq=next((i.event.seq for i in planned.context.items if i.event.turn == planned.context.turn), 0),
    )
    points = choose(layout, job.loaded.last_breakpoints if same_epoch else (), marking)
    hour = job.cache.ttl_seconds > ANTHROPIC.ttl_seconds
    return tuple(replace(point, hour=True) for point in points) if hour else points


def injections_counted(injections: tuple[Injection, ...], counter: Counter) -> list[int]:
    """What each takes."""
    drafts = (Draft(EventType.ANNOUNCE, content=injected(one.name, one.content)) for one in injections)
    return [counter.event(draft) for draft in drafts]


def injected_tokens(injections: tuple[Injection, ...], takes: Sequence[int], budget: Budget) -> int:
    """What all injections take. Raises InjectionOverReserve naming the first that is too large."""
    total, reserve = 0, budget.injection_reserve
    for injection, counted in zip(injections, takes, strict=True):
        total += counted
        tokens, taken = budget.shown(counted), budget.shown(total)
        ceiling = min(reserve, injection.max_tokens) if injection.max_tokens is not None else reserve
        if tokens > ceiling or taken > reserve:
            raise InjectionOverReserve(
                f"injection {injection.name!r} takes {tokens} of {ceiling} reserved tokens, all up to it {taken}",
                name=injection.name,
                tokens=tokens,
                reserve=ceiling,
            )
    return total
