"""The inputs of a context, and those of its plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.core.cover.summaries import Summary, cover_id
from app.core.log.event import Event
from app.core.plan.context.frontier import START, Frontier
from app.core.plan.update import PlanInputs
from app.core.recall.tool import has_recall
from app.core.render.layers import Layer
from app.core.tokens.budget import Budget
from app.core.tokens.cache_profiles import CacheProfile
from app.core.tokens.counter import Counter
from app.core.view.loaded import LoadedView
from app.core.view.request import ContextRequest, ViewSettings
from app.core.view.standing import LastContext


@dataclass(frozen=True, slots=True)
class ContextInputs:
    """All inputs of a context.

    `fresh`: the view's epoch is disregarded. `layers` are the layers to show, which take `layer_tokens` of the target;
    the tokens of injections have a reserve of their own and do not enter the plan. `keep_days` is the minimum time that
    the call's record is kept, None for no limit. `last_context` is the epoch's last context, None if it is not in
    memory. `outside_by` is the source of the tokens sent outside the request (`core/view/budget`).
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
    last_context: LastContext | None = None
    now: float = 0.0
    cache: CacheProfile = CacheProfile()
    keep_days: int | None = None
    outside_by: str | None = None

    @property
    def from_scratch(self) -> bool:
        """Whether the plan starts from an empty frontier: the epoch is disregarded, or the view has no current one."""
        return self.fresh or (self.request.at is None and self.loaded.epoch == 0)


def plan_inputs(inputs: ContextInputs) -> tuple[PlanInputs, Frontier]:
    """Return the inputs of the plan, and the frontier that it starts from."""
    loaded = inputs.loaded
    used_at = loaded.used_at
    state = loaded.frontier
    if inputs.from_scratch:
        state = replace(START, began=loaded.head)
        used_at = None if loaded.view is None else -math.inf  # nothing is cached for the new settings
    read = PlanInputs(
        inputs.events,
        loaded.turn,
        inputs.counter,
        loaded.unread,
        inputs.layer_tokens,
        inputs.last_context.plan if inputs.last_context else None,
        inputs.now,
        used_at,
        inputs.cache,
        summary_tree(inputs),
        () if inputs.from_scratch else loaded.folded,
        loaded.decided,
        loaded.decisions,
        inputs.budget.outside,
        inputs.request.recall or inputs.settings.policy.recall or has_recall(_with_tools(inputs)),
        loaded.learned is None or loaded.learned.caches is not False,
        loaded.requested_to if inputs.request.at is None else 0,
    )
    return read, state


def _with_tools(inputs: ContextInputs) -> Sequence[Event]:
    """Return enough of the events to include the current tools."""
    if inputs.last_context is None:
        return inputs.events
    known = inputs.last_context.plan
    return (*known.context.prefix, *inputs.events[known.count :])


def summary_tree(inputs: ContextInputs) -> tuple[Summary, ...]:
    """Return the live summaries of the events that the view shows, and their sources."""
    loaded = inputs.loaded
    own = str(cover_id(loaded.session_id, inputs.settings.policy.shows))
    return tuple(s for s in (*(loaded.finer or ()), *loaded.cover) if s.cover_id == own and s.to_seq <= loaded.head)
