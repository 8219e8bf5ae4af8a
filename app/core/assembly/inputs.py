"""The inputs of a context: the request, the loaded view, and what must be read of the log."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.core import dataclass, replace
from app.core.lexicon.identifiers import is_recall_tool
from app.core.log.appends import tool_definitions
from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.memory.cover import Summary, cover_id, fold_ends
from app.core.plan.reducers.fold import heal_to
from app.core.plan.reducers.visibility import NewestDecision
from app.core.plan.state.context import Unread
from app.core.plan.state.drops import EXPIRY, UNREAD
from app.core.plan.state.frontier import START, Drop, Frontier
from app.core.plan.update import EarlierPlan, PlanInputs, update_context
from app.core.policy.policy import Policy
from app.core.record.evictions import Eviction
from app.core.render.formats.tools import tool_names
from app.core.render.layers import Content, Layer
from app.core.render.request import Settled
from app.core.tokens.budget import Budget, own_window
from app.core.tokens.calibration import Calibration, Reported
from app.core.tokens.counter import Counter
from app.core.tokens.learned import Learned
from app.core.tokens.models import CacheProfile

OBSERVED_VIEW: Final = "~observed"
"""The view of contexts that are recorded and never sent. Other views' names cannot have its first character.

Usage reported for its calls is that of the requests that were sent in their place, with the whole conversation.
"""
HEAL_FACTOR: Final = 2
"""The growth of the folded part of the log that a heal waits for while a compaction is running."""
HEAL_EVENTS: Final = 5_000
"""A heal does not wait if it leaves fewer dropped events than this: they are summarized soon."""


@dataclass(frozen=True, slots=True)
class ViewRow:
    """A view's settings and current epoch; `epochs` is the highest epoch number in use.

    `replan_cause` is the cause of the next epoch if the next context must be planned from scratch, else None.
    """

    policy: tuple[str, int]
    model: str | None
    window_tokens: int
    epoch: int
    epochs: int
    replan_cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFacts:
    """The stored facts that determine a view's budget. `epoch` is the one to continue; 0 if there is none.

    `calibrations` are those of the requested model, `reported` is the view's last call with reported usage, `learned`
    the facts learned from the view's own calls, `outside_tokens` the tokens that the session states to be sent outside
    its requests.
    """

    epoch: int = 0
    outside_tokens: int | None = None
    calibrations: tuple[Calibration, ...] = ()
    reported: Reported | None = None
    learned: Learned | None = None


@dataclass(frozen=True, slots=True)
class LoadedView(BudgetFacts):
    """Everything read of a session for one context. `head` and `turn` are as of the requested seq, `real_head` the
    log's.

    `head` and `version` together identify the session's state: every change other than an append raises `version`.
    `used_at` is the time of the epoch's last call, in Unix seconds by that call's own clock. `estimator` counted the
    log, whose size is `log_tokens`. `epoch_head` is the head at which the epoch was opened, `last_breakpoints` the seqs
    marked in its last call.

    `cover` are the session's live summaries for every filter (`ViewFilter`), `finer` their sources (None: not read),
    `folded` those that the frontier names. `compaction` is none, scheduled, running or failed. `requested_to` is the
    last seq summarized by compactions that clients requested, 0 without one; `requested_error` is why the last
    compaction failed, if a client requested it. `redactions` is the number of the session's redacted events.

    `pinned` are the pinned seqs, `decided` the newest visibility decision on each event read, `decisions` the number of
    all decisions of the session. `layers` are the newest of each kind, even if their turn is over; a context of an
    earlier seq has none. `moved_to` is the id of the line that the session's name means, None for that line and for any
    but the first.
    """

    session_id: UUID
    version: int
    session_model: str | None
    session_policy: tuple[str, int]
    estimator: str
    log_tokens: int
    head: int
    real_head: int
    turn: int
    view: ViewRow | None
    epoch_head: int
    frontier: Frontier
    last_breakpoints: tuple[int, ...]
    used_at: float | None
    created_at: datetime
    events: tuple[Event, ...]
    unread: Unread
    cover: tuple[Summary, ...] = ()
    folded: tuple[Summary, ...] = ()
    finer: tuple[Summary, ...] | None = None
    compaction: str = "none"
    requested_to: int = 0
    requested_error: str | None = None
    redactions: int = 0
    pinned: tuple[int, ...] = ()
    decided: tuple[NewestDecision, ...] = ()
    decisions: int = 0
    layers: tuple[Layer, ...] = ()
    learned_version: int = 0
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class Injection:
    """Content for this call only, shown with the user's message at the end."""

    name: str
    content: Content
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """An earlier call that was refused as too long: our count, and the provider's `tokens` (None: not reported)."""

    call_id: UUID
    counted: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """A caller's request for a context. For policy, model and window, None means the view's own.

    `max_tokens` is the window, in the provider's tokens, `at` the seq to which the log is read, `wait_ms` the time to
    wait for a summary. `force`: reduce even if that is not necessary. `recall`: the agent has the recall tool.
    `cache_last`: mark the end for the next call. `served_tokens` is the window with which a server runs its models,
    whatever their names. `held_out`: whether the session is held out of reduction; None if no sessions are.
    `window_max` is a limit of the window for this call alone: with one, the window of the view's last call does not
    count.
    """

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
    cache_last: bool = True
    served_tokens: int | None = None
    held_out: bool | None = None
    window_max: int | None = None

    def window_for(self, policy: Policy, model: str | None) -> int | None:
        """Return the window that the request sets: `max_tokens`, else `served_tokens` unless the policy has a window.

        At most `window_max`, which also limits the own window of policy and model. None if the request sets nothing.
        """
        given = self.max_tokens
        if given is None and policy.window_tokens is None:
            given = self.served_tokens
        return given if self.window_max is None else min(given or own_window(policy, model), self.window_max)


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """The policy, model and window with which a view is read."""

    policy_ref: tuple[str, int]
    policy: Policy
    model: str | None
    window_tokens: int


def changed_setting(view: ViewRow | None, settings: ViewSettings) -> str | None:
    """Return the setting of a view that `settings` changes, after which nothing is cached for it; None if none."""
    if view is None:
        return None
    if view.model != settings.model:
        return "model"
    if view.window_tokens != settings.window_tokens:
        return "window"
    return "policy" if view.policy != settings.policy_ref else None


def window_of(
    view: ViewRow | None, policy_ref: tuple[str, int], policy: Policy, model: str | None, asked: int | None = None
) -> int:
    """Return `asked`, else the view's window if policy and model are unchanged, else that of the policy and model."""
    if asked is not None:
        return asked
    if view is not None and (view.model, view.policy) == (model, policy_ref):
        return view.window_tokens
    return own_window(policy, model)


@dataclass(frozen=True, slots=True)
class LastContext:
    """The last context of an epoch: its plan, the settled part of its text, and its evictions.

    `chars` is the number of characters in the events read for it.
    """

    plan: EarlierPlan
    settled: Settled
    evictions: tuple[Eviction, ...]
    chars: int


@dataclass(frozen=True, slots=True)
class ContextInputs:
    """All inputs of a context.

    `ignores_epoch`: the plan starts from an empty frontier although the view has an epoch. `layers` are the layers to
    show, which take `layer_tokens` of the target; the tokens of injections have a reserve of their own and do not enter
    the plan. `caching`: the provider caches, as far as its reports show. `cache_known`: `cache` is known for this
    model, not assumed. `keep_days` is the minimum time that the call's record is kept, None for no limit.
    `last_context` is the epoch's last context, None if it is not in memory.
    """

    events: tuple[Event, ...]
    loaded: LoadedView
    settings: ViewSettings
    counter: Counter
    budget: Budget
    ignores_epoch: bool
    request: ContextRequest
    injected_tokens: int = 0
    layers: tuple[Layer, ...] = ()
    layer_tokens: int = 0
    last_context: LastContext | None = None
    now: float = 0.0
    cache: CacheProfile = CacheProfile()
    cache_known: bool = True
    caching: bool = True
    keep_days: int | None = None

    @property
    def added(self) -> tuple[Event, ...]:
        """The events that the last context does not have."""
        return self.events if self.last_context is None else self.events[self.last_context.plan.count :]

    @property
    def from_scratch(self) -> bool:
        """Whether the plan starts from an empty frontier: it ignores the view's epoch, or there is no current one."""
        return self.ignores_epoch or (self.request.at is None and self.loaded.epoch == 0)


def plan_inputs(inputs: ContextInputs) -> tuple[PlanInputs, Frontier]:
    """Return the inputs of the plan, and the frontier that it starts from."""
    loaded, last = inputs.loaded, inputs.last_context
    used_at, state, from_scratch = loaded.used_at, loaded.frontier, inputs.from_scratch
    if from_scratch:
        state = replace(START, began=loaded.head)
        used_at = None if loaded.view is None else -math.inf  # -inf: the cache counts as cold
    with_tools = (*last.plan.context.prefix, *inputs.added) if last else inputs.events
    tools = next((event for event in reversed(with_tools) if event.type is EventType.TOOLS), None)
    recall = inputs.request.recall or inputs.settings.policy.recall
    read = PlanInputs(
        events=inputs.events,
        turn=loaded.turn,
        counter=inputs.counter,
        unread=loaded.unread,
        ephemeral_tokens=inputs.layer_tokens,
        earlier=last.plan if last else None,
        now=inputs.now,
        used_at=used_at,
        cache=inputs.cache,
        tree=summary_tree(inputs),
        folded=() if from_scratch else loaded.folded,
        decided=loaded.decided,
        decisions=loaded.decisions,
        outside_tokens=inputs.budget.outside,
        recall=recall or (tools is not None and has_recall_tool(tool_definitions(tools.block.content))),
        caching=inputs.caching,
        fold_to=loaded.requested_to if inputs.request.at is None else 0,
    )
    return read, state


def has_recall_tool(definitions: Sequence[Mapping[str, Json]]) -> bool:
    """Return whether tool definitions have the recall tool, also under the names of MCP clients."""
    return any(map(is_recall_tool, tool_names(definitions)))


def summary_tree(inputs: ContextInputs) -> tuple[Summary, ...]:
    """Return the live summaries of the events that the view shows, and their sources."""
    loaded = inputs.loaded
    every = (*(loaded.finer or ()), *loaded.cover)
    if not every:
        return ()
    own = str(cover_id(loaded.session_id, inputs.settings.policy.shows))
    return tuple(one for one in every if one.cover_id == own and one.to_seq <= loaded.head)


def _healable_drops(inputs: ContextInputs) -> list[Drop]:
    """Return the view's drops that a summary may cover by now."""
    return [drop for drop in inputs.loaded.frontier.drops if drop.reducer != EXPIRY]


class CoverBounds(NamedTuple):
    """The bounds of a cover within which a view that dropped events stays current.

    It does while its summaries still end at `covered_to`, or before `lost_from`, the first dropped event. While a
    compaction is running, also while they end before `heal_from`: a heal rewrites the whole prefix, so in a long log it
    waits until it doubles the folded part, or leaves fewer than HEAL_EVENTS dropped.
    """

    cover_id: UUID
    covered_to: int
    lost_from: int
    heal_from: int


def cover_bounds(inputs: ContextInputs) -> CoverBounds | None:
    """Return the bounds for a view; None if nothing was dropped that a summary may cover."""
    lost = _healable_drops(inputs)
    if not lost:
        return None
    own = cover_id(inputs.loaded.session_id, inputs.settings.policy.shows)
    reach = max((one.to_seq for one in inputs.loaded.cover if one.cover_id == str(own)), default=0)
    heal_from = min(lost[-1].to_seq - HEAL_EVENTS, HEAL_FACTOR * inputs.loaded.frontier.folded_to)
    return CoverBounds(own, reach, lost[0].from_seq, heal_from)


def heals_later(inputs: ContextInputs) -> bool:
    """Return whether healing waits for a later context, because more summaries are being written."""
    bounds = cover_bounds(inputs)
    if bounds is None or inputs.loaded.compaction != "running":
        return False
    return bounds.covered_to < bounds.heal_from and not _reduces(inputs, inputs.budget.trigger)


def heals(inputs: ContextInputs) -> bool:
    """Return whether the summaries that were read cover some of the dropped events."""
    return heal_to(inputs.loaded.frontier, fold_ends(summary_tree(inputs))) > 0


def heals_in_part(inputs: ContextInputs) -> bool:
    """Return whether summaries now cover some of the dropped events, but not all.

    Healing rewrites everything shown, so the other dropped events may return and must be read.
    """
    lost = _healable_drops(inputs)
    if inputs.request.at is not None or not lost:
        return False
    ends = fold_ends(summary_tree(inputs))
    return heal_to(inputs.loaded.frontier, ends) > 0 and any(drop.to_seq > ends[-1] for drop in lost)


def may_fold(inputs: ContextInputs) -> bool:
    """Return whether this context may fold summaries, or replace those that are folded."""
    return bool(inputs.loaded.cover) and (bool(_healable_drops(inputs)) or _reduces(inputs, inputs.budget.goal))


def _reduces(inputs: ContextInputs, limit: int) -> bool:
    """Return whether this context may be reduced: on request, or since it may have more than `limit` tokens."""
    loaded, before = inputs.loaded, inputs.last_context.plan if inputs.last_context else None
    if inputs.from_scratch or inputs.request.at is not None or inputs.request.force:
        return True
    if loaded.requested_to > loaded.frontier.folded_to:
        return True
    tokens = loaded.frontier.summary_tokens if before is None else before.context.tokens
    return tokens + sum(event.tokens for event in inputs.added) > limit


def wants_more(inputs: ContextInputs) -> bool:
    """Return whether unread older events may still fit, or must be read to have the newest round whole."""
    read, state = plan_inputs(inputs)
    # A context without these texts is a lower bound, found in no time.
    textless = replace(read, tree=tuple(replace(one, text="") for one in read.tree))
    budget, policy = inputs.budget, inputs.settings.policy
    planned = update_context(textless, budget, policy, state)
    newest = next((event.seq for event in reversed(inputs.events) if event.rendered), 0)
    if any(d.from_seq <= newest <= d.to_seq and d.reason == UNREAD for d in planned.state.drops):
        return True  # only a part of the newest round was read
    if planned.context.tokens > budget.trigger:
        return False
    return not read.tree or update_context(read, budget, policy, state).context.tokens <= budget.trigger
