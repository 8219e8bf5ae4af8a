"""The blocks in which summaries are shown."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from app.core.cover.summaries import Clipped, Summary
from app.core.log.block import Block, Kind
from app.core.plan.context import wording
from app.core.plan.context.frontier import Fold
from app.core.policy.summarize import Summarize


def summary_blocks(cover: Sequence[Summary], folds: Sequence[Fold], rules: Summarize) -> tuple[Block, ...]:
    """A block for each summary that its fold shows, and a line for the others; a clipped cover is one block in all.

    `folds` are those of the summaries in `cover`, in the same order. One without `recall` does not tell how to get its
    events back, nor does then what speaks of several of them.
    """
    if not cover:
        return ()
    kind = Kind.SYSTEM if rules.role == "system" else Kind.NOTE
    cover = [_as_shown(one, fold) for one, fold in zip(cover, folds, strict=True)]
    shown = {fold.id for fold in folds if fold.shown}
    unnamed = {fold.id for fold in folds if not fold.recall}
    if rules.view == "clip":
        return (
            Block(kind, cover[-1].to_seq, wording.archive(_clipped(cover, shown), named=not unnamed), replaced=True),
        )
    hidden = sum(one.id not in shown for one in cover)
    texts = {one.to_seq: wording.summary(one, named=one.id not in unnamed) for one in cover if one.id in shown}
    if hidden:
        first = min(texts, default=cover[-1].to_seq)
        texts[first] = "\n\n".join(filter(None, (wording.omitted(hidden, named=not unnamed), texts.get(first))))
    return tuple(Block(kind, seq, text, replaced=True) for seq, text in sorted(texts.items()))


def _as_shown(one: Summary, fold: Fold) -> Summary:
    return replace(one, text=wording.abridged(one.text, fold.chars, ordered=fold.ordered)) if fold.chars else one


def _clipped(cover: Sequence[Summary], shown: Collection[str]) -> Clipped:
    hidden = [index for index, one in enumerate(cover) if one.id not in shown]
    if not hidden:
        return Clipped(tuple(cover))
    first, last = hidden[0], hidden[-1] + 1
    return Clipped(tuple(cover[:first]), tuple(cover[first:last]), tuple(cover[last:]))
