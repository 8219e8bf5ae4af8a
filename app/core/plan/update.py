"""The starting point of a plan: the context and its frontier, brought up to date with the log.

The context of the view's last call is extended by the events added since. Without one, or if more has changed than the
end of the conversation, the context is projected from all events.
"""

from collections.abc import Sequence

from app.core import dataclass, replace
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, PREFIX, EventType
from app.core.memory.cover import Summary, tiling
from app.core.plan.reducers.fold import FoldReducer, fold
from app.core.plan.reducers.retention import EVICTABLE
from app.core.plan.reducers.visibility import NewestDecision, VisibilityReducer
from app.core.plan.state import drops
from app.core.plan.state.context import NOTHING_UNREAD, Context, Reduced, Unread, units
from app.core.plan.state.drops import refresh_note
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.projection import project, summary_blocks
from app.core.plan.state.results import PairedResult
from app.core.plan.state.stubs import VISIBILITY
from app.core.policy.groups import SHOW_ALL
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.counter import Counter
from app.core.tokens.models import CacheProfile


@dataclass(frozen=True, slots=True)
class EarlierPlan:
    """The result of an earlier plan: the context of the first `count` events under `state`."""

    context: Context
    state: Frontier
    count: int


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The loaded data of a session for one view, and its counter. `turn` is the running turn's number.

    * `before` is an earlier plan of the same view over the first of these events, so that these need not be read again.
    * `now` is the time of the call and `used_at` that of the view's last call, in epoch seconds; None if unknown.
    * `tree` holds the live summaries and those that they were merged from, `folded` those that the frontier names.
    * `decided` holds the newest visibility decision about each of these events, `decisions` counts the session's.
    * `outside_tokens` are sent before the planned context, as part of the prefix that the provider caches.
    * `recall`: the agent can recall events that are left out.
    * `caching` is false if the provider reports no cache use: then no cache is cold, and evictions save no cache reads.
    * `fold_to` is the last seq that a client requested to have summarized; events up to it are folded once summarized.
    """

    events: Sequence[Event]
    turn: int
    counter: Counter
    unread: Unread = NOTHING_UNREAD
    ephemeral_tokens: int = 0
    before: EarlierPlan | None = None
    now: float | None = None
    used_at: float | None = None
    cache: CacheProfile = CacheProfile()
    tree: tuple[Summary, ...] = ()
    folded: tuple[Summary, ...] = ()
    decided: tuple[NewestDecision, ...] = ()
    decisions: int = 0
    outside_tokens: int = 0
    recall: bool = True
    caching: bool = True
    fold_to: int = 0

    @property
    def is_cold(self) -> bool:
        """Whether the provider's cache has expired; False without a cache, an earlier call, or the time."""
        if not self.caching or self.now is None or self.used_at is None:
            return False
        return self.now - self.used_at >= self.cache.ttl_seconds

    def is_warm(self, context: Context) -> bool:
        """Return whether the provider is expected to still hold a prefix of the last request."""
        enough = self.outside_tokens + context.tokens >= self.cache.minimum_tokens
        return self.caching and self.used_at is not None and not self.is_cold and enough


def update_context(read: PlanInputs, budget: Budget, policy: Policy, state: Frontier) -> Reduced:
    """Bring the context up to date with the log and visibility decisions, without new evictions."""
    return update_with_cause(read, budget, policy, state)[0]


def update_with_cause(
    read: PlanInputs, budget: Budget, policy: Policy, state: Frontier
) -> tuple[Reduced, str | None, int]:
    """Like `update_context`, with the cause of a change, and the context's tokens before visibility is applied.

    The earlier plan is extended if it stands: it has the same frontier and the same counter, and the view has no
    filter. Else the context is projected from all events.
    """
    before, grown = read.before, None
    if before and before.state is state and before.context.counter == read.counter and policy.shows == SHOW_ALL:
        added = read.events[before.count :]
        grown = grow(before.context, added, turn=read.turn, ephemeral_tokens=read.ephemeral_tokens)
    context, settled, cause = (grown, state, None) if grown else _reconcile_log(read, policy, state)
    if not read.decisions:
        return Reduced(context, settled), cause, context.tokens
    done = VisibilityReducer(read.decided).reduce(context, budget, settled)
    return done, cause if done.state is settled else VISIBILITY, context.tokens


def grow(before: Context, added: Sequence[Event], *, turn: int, ephemeral_tokens: int) -> Context | None:
    """Append the events `added` to the context `before`, under the same frontier.

    None if they do more than extend the conversation: a new prefix, or a result that is late or whose call is not
    visible. Not for views with a filter. The cached properties are extended as well, so that nothing is computed over
    the whole log again.
    """
    last = before.units[-1] if before.units else None
    tail = (*last.items, *last.results) if last else ()
    by_seq = {item.event.seq: item for item in tail}
    items: list[Item] = []
    for event in added:
        if event.type in PREFIX:
            return None
        if event.type in BOOKKEEPING:
            continue
        call = by_seq.get(event.call_seq or 0)
        if event.type is EventType.TOOL_RESULT and (call is None or call.event.type is not EventType.TOOL_CALL):
            return None
        item = by_seq[event.seq] = Item(event, event.tokens)
        items.append(item)
    after = replace(before, items=before.items + tuple(items), turn=turn, ephemeral_tokens=ephemeral_tokens)
    renewed = units((*tail, *items))
    if last and (renewed[0].items, renewed[0].results) == (last.items, last.results):  # no item joins it
        renewed = (last, *renewed[1:])
    if any(unit.late_results for unit in renewed):
        return None
    history, current = before.item_tokens if turn == before.turn else (sum(before.item_tokens), 0)
    running = sum(item.tokens for item in items if item.event.turn == turn)
    history, current = history + sum(item.tokens for item in items) - running, current + running
    results = tuple(item for item in items if item.event.type is EventType.TOOL_RESULT)
    pairs = tuple(PairedResult(item, by_seq.get(item.event.call_seq or 0)) for item in results)
    calls = {item.event.seq for item in items if item.event.type is EventType.TOOL_CALL}
    vars(after).update(
        seqs=before.seqs + tuple([item.event.seq for item in items]),
        paired_results=before.paired_results + pairs,
        pinned_stubs=before.pinned_stubs,
        perishable=before.perishable + tuple(item for item in items if item.event.expires),
        repeats=before.repeats.extend(pairs) if pairs else before.repeats,
        units=before.units[:-1] + renewed,
        rounds_before=before.rounds_before.extend([unit.size for unit in renewed[:-1]]),
        item_tokens=(history, current),
        open_calls=(before.open_calls | calls) - {item.event.call_seq for item in results},
    )
    if "worked_files" in vars(before):
        vars(after)["worked_files"] = before.worked_files.extend(pairs) if pairs else before.worked_files
    if (known := vars(before).get(EVICTABLE)) is not None:
        vars(after)[EVICTABLE] = known.extend(before, after)
    return after


def _reconcile_log(read: PlanInputs, policy: Policy, state: Frontier) -> tuple[Context, Frontier, str | None]:
    cause = None
    settled = drops.update_prefix(read.events, state)
    if settled is not state:
        cause = "system_prompt" if settled.system_seq != state.system_seq else "tools"
    context = _project(read, policy, settled)
    if read.tree and context.unread.to_seq > settled.floor:
        folding = FoldReducer(read.tree, policy.summarize)
        cover = tiling(read.tree, 1, folding.fold_end(context.unread.to_seq))
        if cover and cover[-1].to_seq > settled.folded_to:
            folded = fold(context, settled, cover, policy.summarize)
            context, settled, cause = folded.context, folded.state, "budget"
    for rule, name in ((drops.drop_unread, "budget"), (drops.adopt_late_results, "late_result")):
        changed = rule(context, settled)
        if changed is not settled:
            context, settled, cause = _project(read, policy, changed), changed, name
    if settled.left_out != state.left_out:
        reduced = refresh_note(context, settled)
        context, settled = reduced.context, reduced.state
    return context, settled, cause


def _project(read: PlanInputs, policy: Policy, state: Frontier) -> Context:
    known = {summary.id: summary for summary in (*read.tree, *read.folded)}
    return project(
        read.events,
        state,
        read.counter,
        turn=read.turn,
        shows=policy.shows,
        ephemeral_tokens=read.ephemeral_tokens,
        unread=read.unread,
        summaries=summary_blocks([known[fold.id] for fold in state.folds], state.folds, policy.summarize),
    )
