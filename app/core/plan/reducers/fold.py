"""The fold: summaries that were written in advance replace the oldest events of the log."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import lazy
from app.core.log.events import EventType
from app.core.memory.cover import COVER_SHARE, Summary, clip, fold_ends, refine, tiling
from app.core.plan.state import wording
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.drops import EXPIRY, rebuild_note
from app.core.plan.state.frontier import LATER, SINGLE, Drop, Fold, Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.projection import count_summaries, summary_blocks
from app.core.plan.state.results import held_content, held_messages
from app.core.plan.state.settled import settled_lines
from app.core.policy.groups import Summarize
from app.core.tokens.budget import SLACK, Budget, allowed_excess
from app.core.tokens.counter import Counter

REDUCER: Final = "fold"
WIDE_SHARE: Final = 0.5
"""A context whose policy has the view `latest` or `clip` shows folded events verbatim only if it takes at most this
share of the goal."""
CUT_SHARE: Final = 0.25
"""The maximum share of the summaries that is cut to keep held content."""


@dataclass(frozen=True)
class FoldReducer:
    """Folds the oldest events under `tree`: the live summaries, and those that they were merged from.

    It folds at least up to the seq `least_to`, as far as summaries reach; with `everything`, all that they cover.
    Events from `keep_from` on stay verbatim, the newest first, as far as the target allows. Held content
    stays too (`held_content`), unless `working_set_calls` (`retention.working_set`) is 0.
    """

    tree: tuple[Summary, ...]
    rules: Summarize
    least_to: int = 0
    everything: bool = False
    keep_from: int | None = None
    working_set_calls: int = 0

    @lazy
    def ends(self) -> tuple[int, ...]:
        """The seqs up to which the log can be folded."""
        return fold_ends(self.tree)

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Fold the fewest events that bring the context within `budget.goal`, in the finest cover that fits.

        Protected events (I9) stay verbatim although a summary covers them. So do the newest covered events if much room
        is left, since one summary may cover far more than had to go. If no fold reaches the goal, the one that leaves
        the fewest tokens is taken. A fold that saves nothing is not made, unless `least_to` demands it.
        """
        first_end = max(state.folded_to, fold_end(self.least_to, self.ends), 1)
        choices = [to_seq for to_seq in self.ends if to_seq >= first_end]
        if not choices:
            return Reduced(context, state)
        held = held_content(context, self.working_set_calls, budget.goal)
        weights = _Weights(context, state, context.counter, held)
        to_seq, total = self._choose_end(weights, budget, choices)
        if self.least_to <= state.folded_to and total >= context.tokens:
            return Reduced(context, state)
        cover, room = tiling(self.tree, 1, to_seq), budget.goal - total
        if self.rules.view == "all":
            cover = refine(self.tree, cover, room, weights.cost)
            room = budget.goal - weights.total(cover, to_seq) + weights.saved_by_joining(cover)
        elif total > WIDE_SHARE * budget.goal and not budget.fallback_target:
            room = 0  # the policy chooses what it keeps next to its summary
        start = self._shown_from(weights, cover, to_seq, room, budget)
        return fold(context, state, cover, self.rules, start, held)

    def _choose_end(self, weights: "_Weights", budget: Budget, choices: Sequence[int]) -> tuple[int, int]:
        """Return the first end that fits the goal, else the one that leaves the fewest tokens, and these tokens.

        `everything`: always the latter, without the tokens of the summaries' headers.
        """
        totals = {to_seq: weights.total(tiling(self.tree, 1, to_seq), to_seq) for to_seq in choices}
        if self.everything:
            totals = {seq: total - weights.headers(tiling(self.tree, 1, seq)) for seq, total in totals.items()}
        fitting = () if self.everything else (seq for seq in choices if totals[seq] <= budget.goal)
        to_seq = next(iter(fitting), None) or min(choices, key=lambda seq: (totals[seq], -seq))
        return to_seq, totals[to_seq]

    def _shown_from(self, weights: "_Weights", cover: Sequence[Summary], end: int, room: int, budget: Budget) -> int:
        """Return the first covered seq that stays, as `room` allows; a retry or `force` also keeps its newest part."""
        slack, over = int(SLACK * budget.goal), allowed_excess(budget.goal, budget.trigger)
        start = end + 1 if self.everything else weights.verbatim_from(end, room, slack, over)
        if self.keep_from is None or self.keep_from >= start:
            return start
        # A retry shortens its summaries rather than its newest part.
        excess = sum(map(weights.cost, cover)) - int(COVER_SHARE * budget.target) if budget.fallback_target else 0
        most = budget.target - weights.total(cover, end) + max(0, excess)
        return min(start, max(self.keep_from, weights.verbatim_from(end, most, 0, 0)))

    def heal(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Fold dropped events that a summary covers by now, even if that makes the context larger.

        Events after them that are shown and covered too stay verbatim, if the context is then within the trigger.
        """
        lost_to = heal_to(state, self.ends)
        if not lost_to:
            return Reduced(context, state)
        cover = tiling(self.tree, 1, max(state.folded_to, fold_end(lost_to, self.ends)))
        held = held_messages(context, budget.goal) if self.working_set_calls else ()
        verbatim = fold(context, state, cover, self.rules, shown_from=lost_to + 1, held=held)
        if verbatim.context.tokens <= budget.trigger:
            return verbatim
        return replace(self, least_to=lost_to).reduce(context, budget, state)


def fold_end(seq: int, ends: Sequence[int]) -> int:
    """Return the first of a tree's `fold_ends` that includes `seq`, or the last one; 0 for seq 0 or without any."""
    return next((to_seq for to_seq in ends if to_seq >= seq), max(ends, default=0)) if seq else 0


def heal_to(state: Frontier, ends: Sequence[int]) -> int:
    """Return the last dropped seq that a summary covers by now, 0 without one. Drops by expiry are not healed."""
    last = max(ends, default=0)
    return max((min(d.to_seq, last) for d in state.drops if d.from_seq <= last and d.reducer != EXPIRY), default=0)


@dataclass(frozen=True, slots=True)
class HealReducer:
    """Folds dropped events that a summary covers by now; `working_set_calls` as in `FoldReducer`."""

    tree: tuple[Summary, ...]
    rules: Summarize
    working_set_calls: int = 0

    def idle(self, context: Context, state: Frontier) -> bool:
        """Return whether there is nothing to heal."""
        return not heal_to(state, fold_ends(self.tree))

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Apply `FoldReducer.heal`."""
        return FoldReducer(self.tree, self.rules, working_set_calls=self.working_set_calls).heal(context, budget, state)


def kept_from_folding(context: Context, held: Collection[int] = ()) -> frozenset[int]:
    """Return seqs that no fold removes: protected events, the rounds of those in `held`, and the running turn's rounds
    with events that expire by age.

    Summaries leave out expiring events, so folding them would lose them before their time.
    """
    stays = set(context.protected)
    passing = {i.event.seq for i in context.perishable if i.event.expires_by_age and i.event.turn == context.turn}
    passing.update(held)
    if passing:
        for unit in context.units:
            seqs = {item.event.seq for item in unit.all_items}
            if not passing.isdisjoint(seqs):
                stays |= seqs
    return frozenset(stays)


class _Weights:
    """The tokens that a context would take with its log folded up to a given seq."""

    def __init__(self, context: Context, state: Frontier, counter: Counter, held: Collection[int]) -> None:
        self._counter = counter
        self._drops = state.drops
        self._note = context.note_tokens
        stays = kept_from_folding(context, held)
        self._units = [
            (unit.items[0].event.seq, max(i.event.seq for i in unit.all_items), sum(i.tokens for i in unit.all_items))
            for unit in context.units
            if unit.items[0].event.seq not in stays
        ]
        foldable = sum(tokens for _, _, tokens in self._units)
        self._fixed = context.tokens - foldable - context.summary_tokens - self._note
        self._costs: dict[str, int] = {}

    def cost(self, summary: Summary) -> int:
        """Return the tokens of a summary as shown."""
        if summary.id not in self._costs:
            self._costs[summary.id] = self._counter.message(wording.join_summaries((summary,)))
        return self._costs[summary.id]

    def headers(self, cover: Sequence[Summary]) -> int:
        """Return the tokens of the headers of separate summaries, except the first one's, which joined text has too."""
        return sum(self.cost(summary) - self._counter.message(summary.text) for summary in cover[1:])

    def saved_by_joining(self, cover: Sequence[Summary]) -> int:
        """Return the tokens that one joined text saves against separate summaries."""
        return max(0, sum(map(self.cost, cover)) - self._counter.message(wording.join_summaries(cover)))

    def total(self, cover: Sequence[Summary], to_seq: int) -> int:
        """Return the tokens of the context with `cover` in place of everything up to to_seq."""
        following = sum(tokens for _, last, tokens in self._units if last > to_seq)
        note = self._note if any(drop.to_seq > to_seq for drop in self._drops) else 0
        return self._fixed + sum(map(self.cost, cover)) + following + note

    def verbatim_from(self, to_seq: int, room: int, slack: int, over: int) -> int:
        """Return the seq from which the folded events up to to_seq fit verbatim into `room` tokens.

        If more than `slack` tokens would be left, one more unit is included that exceeds the room by at most `over`.
        """
        start = to_seq + 1
        for first, last, tokens in reversed(self._units):
            if last > to_seq:
                continue
            if tokens > room:
                return first if slack < room and tokens <= room + over else start
            room -= tokens
            start = first
        return start


def fold(
    context: Context,
    state: Frontier,
    cover: Sequence[Summary],
    rules: Summarize,
    shown_from: int | None = None,
    held: Collection[int] = (),
) -> Reduced:
    """Put `cover` in place of the events it covers, in the context and its state.

    Units that reach `shown_from` or beyond stay verbatim, and so do those of the events in `held`. Covered results are
    removed if their call is not in the context.
    """
    to_seq = cover[-1].to_seq
    last = to_seq if shown_from is None else min(to_seq, shown_from - 1)
    stays = kept_from_folding(context, held)
    gone = {
        item.event.seq
        for unit in context.units
        if unit.items[0].event.seq not in stays and all(i.event.seq <= last for i in unit.all_items)
        for item in unit.all_items
    }
    calls = {item.event.seq for item in context.items if item.event.type is EventType.TOOL_CALL}
    gone |= {i.event.seq for i in context.items if i.event.seq <= to_seq and _is_orphan(i, calls)}
    rest = tuple(item for item in context.items if item.event.seq not in gone)
    folds = tuple(
        Fold(s.id, s.from_seq, s.to_seq, s.depth, s.tokens, max(0, s.source_tokens - s.tokens), joined=True, dated=True)
        for s in cover
    )
    settled = settled_lines(cover, [item.event for item in rest if item.event.seq > to_seq])
    follows = SINGLE if any(item.shown and item.event.seq <= to_seq for item in rest) else LATER
    folds = (*folds[:-1], replace(folds[-1], settled=settled, follows=follows, precise=True))
    floor = max(state.floor, to_seq)
    seqs = {item.event.seq for item in rest} | {event.seq for event in context.prefix}
    drops = tuple(left for drop in state.drops if (left := _uncovered_part(drop, to_seq)) is not None)
    kept = tuple(sorted(seq for seq in seqs if seq <= floor))
    after = replace(state.without(gone), floor=floor, kept=kept, drops=drops)
    done = _show(replace(context, items=rest), after, cover, folds, rules)
    return done if drops == state.drops else rebuild_note(done.context, done.state)


def fold_all(
    done: Reduced,
    tree: tuple[Summary, ...],
    known: Sequence[Summary],
    budget: Budget,
    rules: Summarize,
    held: Sequence[int],
) -> Reduced:
    """Fold all that `tree` covers, so that no covered event is dropped, and `shrink` the summaries.

    Events in `held` stay verbatim, the first ones first, as far as the target allows if the summaries are shortened by
    at most CUT_SHARE; a report and a plan in any case. `known` are the tree and the summaries that the state names.
    """
    last = max(fold_ends(tree), default=0)
    if not last or last < done.state.folded_to:
        return shrink(done, budget, known, rules)
    said = [seq for seq in held_messages(done.context, budget.goal) if seq in held]
    while True:
        folded = shrink(fold(done.context, done.state, tiling(tree, 1, last), rules, held=held), budget, known, rules)
        over = folded.context.tokens - budget.target
        covered = [seq for seq in held if seq <= last]
        if covered and 0 < over <= CUT_SHARE * folded.context.summary_tokens:
            folded = cut_summaries(folded, folded.context.summary_tokens - over, known, rules)
            over = folded.context.tokens - budget.target
        items = [item for item in map(done.context.item, covered) if item is not None and item.event.seq not in said]
        if over <= 0 or not items:
            return folded
        while items and over > 0:
            over -= items.pop().tokens
        covered = [*said, *(item.event.seq for item in items)]
        held = [seq for seq in held if seq > last or seq in covered]


def shrink(done: Reduced, budget: Budget, summaries: Sequence[Summary], rules: Summarize) -> Reduced:
    """Cut the summaries of a context above its target down to their share of the target, as `cut_summaries` does.

    No more is cut than brings the context to `budget.low`.
    """
    context = done.context
    most = max(int(COVER_SHARE * budget.target), context.summary_tokens - (context.tokens - budget.low))
    if context.tokens <= budget.target or not done.state.folds or context.summary_tokens <= most:
        return done
    return cut_summaries(done, most, summaries, rules)


def cut_summaries(done: Reduced, most: int, summaries: Sequence[Summary], rules: Summarize) -> Reduced:
    """Cut the summaries of a context down to `most` tokens.

    `summaries` must contain those that the state names. With `view: clip` the ones between the first and the last are
    left out first. Then the longest are shortened.
    """
    cover = _folded_summaries(done.state, summaries)
    if rules.view == "clip":
        shown = {summary.id for summary in clip(cover, rules).shown}
        folds = tuple(replace(f, shown=f.shown and f.id in shown) for f in done.state.folds)
        done = _show(done.context, done.state, cover, folds, rules)
    for _ in range(3):  # the text around several summaries can be counted only together with them
        excess = done.context.summary_tokens - most
        if excess <= 0:
            break
        done = _shortened(done, cover, sum(fold.tokens for fold in done.state.folds if fold.shown) - excess, rules)
    return done


def show_fewer(done: Reduced, target: int, summaries: Sequence[Summary], rules: Summarize) -> Reduced:
    """Hide the fewest of the oldest summaries that bring the context within `target`; their folds stay in the state.

    `summaries` include those that the state names.
    """
    cover = _folded_summaries(done.state, summaries)
    for index, fold in enumerate(done.state.folds):
        if done.context.tokens <= target:
            break
        if fold.shown:
            folds = list(done.state.folds)
            folds[index] = replace(fold, shown=False)
            done = _show(done.context, done.state, cover, tuple(folds), rules)
    return done


def _shortened(done: Reduced, cover: Sequence[Summary], room: int, rules: Summarize) -> Reduced:
    """Cut the longest of the shown summaries so that all together take at most `room` tokens."""
    counter = done.context.counter
    shown = [fold.tokens for fold in done.state.folds if fold.shown]
    most = next((cap for cap in sorted(shown, reverse=True) if sum(min(cap, t) for t in shown) <= room), 0)
    above = [tokens for tokens in shown if tokens > most]
    if above:
        most += max(0, room - sum(min(most, tokens) for tokens in shown)) // len(above)
    folds = []
    for fold, summary in zip(done.state.folds, cover, strict=True):
        if fold.shown and fold.tokens > most:
            fold = _cut(fold, summary, most, counter)
        folds.append(fold)
    return _show(done.context, done.state, cover, tuple(folds), rules)


def _cut(fold: Fold, summary: Summary, tokens: int, counter: Counter) -> Fold:
    """Return the fold with at most `tokens` tokens of its summary shown; not shown if nothing fits."""
    chars = fold.chars or len(summary.text)
    while chars > 0:
        taken = counter.message(wording.abridge_summary(summary.text, chars, ordered=True))
        if taken <= tokens:
            saved = max(0, summary.source_tokens - taken)
            return replace(fold, chars=chars, ordered=True, tokens=taken, saved=saved)
        chars = min(chars * 19 // 20, chars * tokens // taken)
    return replace(fold, shown=False)


def _show(
    context: Context, state: Frontier, cover: Sequence[Summary], folds: tuple[Fold, ...], rules: Summarize
) -> Reduced:
    blocks = summary_blocks(cover, folds, rules)
    tokens = count_summaries(context.counter, blocks, folds)
    return Reduced(
        replace(context, summaries=blocks, summary_tokens=tokens), replace(state, folds=folds, summary_tokens=tokens)
    )


def _folded_summaries(state: Frontier, summaries: Sequence[Summary]) -> list[Summary]:
    known = {summary.id: summary for summary in summaries}
    return [known[fold.id] for fold in state.folds]


def _is_orphan(item: Item, calls: Collection[int]) -> bool:
    return item.event.type is EventType.TOOL_RESULT and item.event.call_seq not in calls


def _uncovered_part(drop: Drop, to_seq: int) -> Drop | None:
    """Return the part of a drop after to_seq, which no summary covers; None if there is none."""
    if drop.to_seq <= to_seq:
        return None
    if drop.from_seq > to_seq:
        return drop
    share = (drop.to_seq - to_seq) / (drop.to_seq - drop.from_seq + 1)
    return replace(drop, from_seq=to_seq + 1, tokens=round(drop.tokens * share))
