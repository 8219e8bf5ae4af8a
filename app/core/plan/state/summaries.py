"""The blocks that show summaries."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from app.core.log.event import Block, Kind
from app.core.memory.cover import Clipped, Summary
from app.core.plan.state import wording
from app.core.plan.state.frontier import Fold
from app.core.policy.summarize import Summarize


def summary_blocks(cover: Sequence[Summary], folds: Sequence[Fold], rules: Summarize) -> tuple[Block, ...]:
    """Return one block with all summaries whose folds are shown, and a line about the others.

    `folds` are those of the summaries in `cover`, in the same order. If one is not `joined`, as in epochs of earlier
    versions, each summary gets a block of its own. A summary whose fold has no `recall` gets no recall hint; a text
    about several summaries gets the hint only if all folds have it.
    """
    if not cover:
        return ()
    kind = Kind.SYSTEM if rules.role == "system" else Kind.NOTE
    cover = [_as_shown(summary, fold) for summary, fold in zip(cover, folds, strict=True)]
    shown = {fold.id for fold in folds if fold.shown}
    unrecallable = {fold.id for fold in folds if not fold.recall}
    if rules.view == "clip":
        text = wording.archive(_clipped(cover, shown), recall=not unrecallable)
        return (Block(kind, cover[-1].to_seq, text, replaced=True),)
    hidden = sum(summary.id not in shown for summary in cover)
    if all(fold.joined for fold in folds):
        text = wording.join_summaries([s for s in cover if s.id in shown], hidden, recall=not unrecallable)
        return (Block(kind, cover[-1].to_seq, text, replaced=True),)
    texts = {s.to_seq: wording.summary(s, recall=s.id not in unrecallable) for s in cover if s.id in shown}
    if hidden:
        first = min(texts, default=cover[-1].to_seq)
        texts[first] = "\n\n".join(
            filter(None, (wording.omitted_line(hidden, recall=not unrecallable), texts.get(first)))
        )
    return tuple(Block(kind, seq, text, replaced=True) for seq, text in sorted(texts.items()))


def _as_shown(summary: Summary, fold: Fold) -> Summary:
    if not fold.chars:
        return summary
    return replace(summary, text=wording.abridge(summary.text, fold.chars, ordered=fold.ordered))


def _clipped(cover: Sequence[Summary], shown: Collection[str]) -> Clipped:
    hidden = [index for index, summary in enumerate(cover) if summary.id not in shown]
    if not hidden:
        return Clipped(tuple(cover))
    first, last = hidden[0], hidden[-1] + 1
    return Clipped(tuple(cover[:first]), tuple(cover[first:last]), tuple(cover[last:]))
