"""The starting point of a plan: the context and its frontier, brought up to date with the log.

The context of the view's last call is extended by the events added since. Without one, or if more has changed than the
end of the conversation, the context is projected from all events.
"""

from collections.abc import Sequence

from app.core import dataclass, replace
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, PREFIX, EventType
from app.core.memory.cover import Summary, fold_ends, tiling
from app.core.plan.reducers.fold import fold, fold_end
from app.core.plan.reducers.retention import EVICTABLE
from app.core.plan.reducers.visibility import NewestDecision, VisibilityReducer
from app.core.plan.state.context import NOTHING_UNREAD, Context, Reduced, Unread, units
from app.core.plan.state.drops import drop_unread, refresh_note
from app.core.plan.state.frontier import Frontier, Superseded
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

    * `earlier` is a plan of the same view over the first of these events, so that these need not be read again.
    * `now` is the time of the call in Unix seconds, None if unknown.
    * `used_at` is the time of the epoch's last call; None without one, -inf if its cache is of no use.
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
    earlier: EarlierPlan | None = None
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
    """Update the context by the log and visibility decisions. Only the unread part is folded or dropped, with the rest
    of a summary or round that its end cuts through."""
    return update_with_cause(read, budget, policy, state)[0]


def update_with_cause(
    read: PlanInputs, budget: Budget, policy: Policy, state: Frontier
) -> tuple[Reduced, str | None, int]:
    """Like `update_context`, with the cause of a change, and the context's tokens before visibility is applied.

    The earlier plan is extended if it stands: it has the same frontier and the same counter, and the view has no
    filter. Else the context is projected from all events.
    """
    before, grown = read.earlier, None
    if before and before.state is state and before.context.counter == read.counter and policy.shows == SHOW_ALL:
        added = read.events[before.count :]
        grown = grow(before.context, added, turn=read.turn, ephemeral_tokens=read.ephemeral_tokens)
    context, updated, cause = (grown, state, None) if grown else _reconcile_log(read, policy, state)
    if not read.decisions:
        return Reduced(context, updated), cause, context.tokens
    done = VisibilityReducer(read.decided).reduce(context, budget, updated)
    return done, cause if done.state is updated else VISIBILITY, context.tokens


def grow(before: Context, added: Sequence[Event], *, turn: int, ephemeral_tokens: int) -> Context | None:
    """Append the events `added` to the context `before`, under the same frontier.

    None if they do more than extend the conversation: a new prefix, a late result, or one whose call is not visible.
    Not for views with a filter. Cached properties are extended too: nothing is computed over the whole log again.
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


def update_prefix(events: Sequence[Event], state: Frontier) -> Frontier:
    """Make the newest system prompts and tool list effective, and mark the earlier ones as superseded.

    Prompts that no conversation event separates take effect together. `events` may lack prompts and tool lists of the
    unread part of the log, but none that takes effect.
    """
    spoken = state.floor
    for event in events:
        if event.rendered:
            spoken = max(spoken, event.seq)
        elif event.type is EventType.SYSTEM_PROMPT and event.seq > state.system_seq:
            if spoken < state.system_seq and any(e.seq == state.system_seq for e in events):
                state = replace(state, system_before=state.system_seqs, system_seq=event.seq)
            else:
                for seq in state.system_seqs:
                    state = _supersede(events, state, seq)
                state = replace(state, system_before=(), system_seq=event.seq)
        elif event.type is EventType.TOOLS and event.seq > state.tools_seq:
            state = replace(_supersede(events, state, state.tools_seq), tools_seq=event.seq)
    return state


def _supersede(events: Sequence[Event], state: Frontier, seq: int) -> Frontier:
    old = next((e for e in events if e.seq == seq), None)
    return state if old is None else replace(state, superseded=(*state.superseded, Superseded(seq, old.tokens)))


def adopt_late_results(context: Context, state: Frontier) -> Frontier:
    """Adopt results that arrived after later events: show them directly after their calls, as providers demand."""
    late = {seq for unit in context.units for seq in unit.late_results} - set(state.adopted)
    return replace(state, adopted=tuple(sorted({*state.adopted, *late}))) if late else state


def _reconcile_log(read: PlanInputs, policy: Policy, state: Frontier) -> tuple[Context, Frontier, str | None]:
    cause = None
    updated = update_prefix(read.events, state)
    if updated is not state:
        cause = "system_prompt" if updated.system_seq != state.system_seq else "tools"
    context = _project(read, policy, updated)
    if read.tree and context.unread.to_seq > updated.floor:
        cover = tiling(read.tree, 1, fold_end(context.unread.to_seq, fold_ends(read.tree)))
        if cover and cover[-1].to_seq > updated.folded_to:
            folded = fold(context, updated, cover, policy.summarize)
            context, updated, cause = folded.context, folded.state, "budget"
    for rule, name in ((drop_unread, "budget"), (adopt_late_results, "late_result")):
        changed = rule(context, updated)
        if changed is not updated:
            context, updated, cause = _project(read, policy, changed), changed, name
    if updated.left_out != state.left_out:
        reduced = refresh_note(context, updated)
        context, updated = reduced.context, reduced.state
    return context, updated, cause


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
