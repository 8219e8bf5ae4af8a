"""The fold: summaries that were written ahead stand for the oldest part of the log, in the place of its events."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.budget import Budget
from app.core.cover import Summary, clip, contiguous
from app.core.log import content_text
from app.core.plan.context import Context, Reduced
from app.core.plan.drop import told_anew
from app.core.plan.frontier import Drop, Fold, Frontier
from app.core.plan.settle import must_stay
from app.core.policy import Summarize
from app.core.render.layout import Block
from app.core.render.summaries import summary_blocks

REDUCER: Final = "fold"


@dataclass(frozen=True, slots=True)
class FoldReducer:
    """Folds what `cover`, the live summaries, stands for."""

    cover: tuple[Summary, ...]
    rules: Summarize

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """As few summaries as bring the context within `budget.goal`, oldest first; all if none do.

        What must stay (I9) stays as it is although a summary speaks of it too. Nothing is folded that saves nothing,
        unless it tells of what had to be dropped before it was written.
        """
        cover = contiguous(self.cover)
        best: Reduced | None = None
        for n in range(1, len(cover) + 1):
            if cover[n - 1].to_seq < state.folded_to:
                continue
            done = fold(context, state, cover[:n], self.rules)
            if best is None or done.context.tokens <= best.context.tokens or self._heals(done, best, budget):
                best = done
            if best.context.tokens <= budget.goal and not self._dropped(best.state, cover):
                break
        if best is None:
            return Reduced(context, state)
        before = Reduced(context, state)
        return best if best.context.tokens < context.tokens or self._heals(best, before, budget) else before

    def _heals(self, done: Reduced, before: Reduced, budget: Budget) -> bool:
        fewer = len(done.state.drops) < len(before.state.drops)
        return fewer and done.context.tokens <= max(budget.goal, before.context.tokens)

    def _dropped(self, state: Frontier, cover: Sequence[Summary]) -> bool:
        return any(drop.from_seq <= cover[-1].to_seq for drop in state.drops)


def fold(context: Context, state: Frontier, cover: Sequence[Summary], rules: Summarize) -> Reduced:
    """The context with `cover` in the place of all it stands for, and the state that makes it so."""
    to_seq = cover[-1].to_seq
    stays = must_stay(context.items, context.turn)
    gone = {
        item.event.seq
        for unit in context.units
        if unit.items[0].event.seq not in stays and all(i.event.seq <= to_seq for i in unit.all_items)
        for item in unit.all_items
    }
    rest = tuple(item for item in context.items if item.event.seq not in gone)
    visible = {summary.id for summary in clip(cover, rules).shown}
    folds = tuple(
        Fold(s.id, s.from_seq, s.to_seq, s.depth, s.tokens, max(0, s.source_tokens - s.tokens), s.id in visible)
        for s in cover
    )
    floor = max(state.floor, to_seq)
    seqs = {item.event.seq for item in rest} | {event.seq for event in context.prefix}
    drops = tuple(left for drop in state.drops if (left := _behind(drop, to_seq)) is not None)
    blocks, tokens = _blocks(context, cover, visible, rules)
    after = replace(
        state,
        floor=floor,
        kept=tuple(sorted(seq for seq in seqs if seq <= floor)),
        drops=drops,
        stubs=tuple(stub for stub in state.stubs if stub.seq not in gone),
        adopted=tuple(seq for seq in state.adopted if seq not in gone),
        folds=folds,
        summary_tokens=tokens,
    )
    context = replace(context, items=rest, summaries=blocks, summary_tokens=tokens)
    return Reduced(context, after) if drops == state.drops else told_anew(context, after)


def show_fewer(done: Reduced, target: int, summaries: Sequence[Summary], rules: Summarize) -> Reduced:
    """Where a context is still too large: the oldest summaries are not shown, as few of them as will do.

    `summaries` hold those that the state names. The proof of what they stand for stays.
    """
    context, state = done.context, done.state
    known = {one.id: one for one in summaries}
    cover = [known[one.id] for one in state.folds]
    folds = list(state.folds)
    for index, one in enumerate(folds):
        if context.tokens <= target:
            break
        if not one.shown:
            continue
        folds[index] = replace(one, shown=False)
        blocks, tokens = _blocks(context, cover, {f.id for f in folds if f.shown}, rules)
        context = replace(context, summaries=blocks, summary_tokens=tokens)
        state = replace(state, folds=tuple(folds), summary_tokens=tokens)
    return Reduced(context, state)


def _blocks(
    context: Context, cover: Sequence[Summary], shown: Collection[str], rules: Summarize
) -> tuple[tuple[Block, ...], int]:
    """The blocks, and what they take."""
    blocks = summary_blocks(cover, shown, rules)
    return blocks, sum(context.counter.message(content_text(block.content)) for block in blocks)


def _behind(drop: Drop, to_seq: int) -> Drop | None:
    """What of a drop no summary stands for."""
    if drop.to_seq <= to_seq:
        return None
    if drop.from_seq > to_seq:
        return drop
    share = (drop.to_seq - to_seq) / (drop.to_seq - drop.from_seq + 1)
    return replace(drop, from_seq=to_seq + 1, tokens=round(drop.tokens * share))
