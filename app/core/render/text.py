"""The text of a context, and the part of it that the later contexts of its epoch repeat."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Final, NamedTuple

from app.core.log.block import Block, Kind
from app.core.log.event import Event
from app.core.plan.state.context import Context, Unit
from app.core.plan.state.frontier import Frontier
from app.core.render.formats import FORMATS
from app.core.render.formats.fit import Loss, prepare
from app.core.render.formats.layout import Breakpoint, Layout, Mark, Places, Writer
from app.core.render.layers import Content
from app.core.render.request import Hashes, Request, front, request_of, tail, unit_blocks, write_blocks

MARK_UNITS: Final = 8
"""Units between two marks: the most that a new epoch writes again before its first change."""


class SettledMark(NamedTuple):
    """The state of a settled text after some number of units: the lengths of its parts, and its writer's mark."""

    units: int
    blocks: int
    losses: int
    chars: int
    counts: Mapping[Kind, int]
    writer: Mark


@dataclass(frozen=True, slots=True)
class Settled:
    """The text that later contexts of an epoch repeat byte for byte: all units but the last, in one format.

    `layout` is prepared for the format, `counts` counts the blocks of each kind before that. `chars` is the size of the
    texts. `marks` are the positions up to which the context of another epoch may repeat it too.
    """

    format: str
    state: Frontier
    prefix: tuple[Event, ...]
    summaries: tuple[Block, ...]
    units: tuple[Unit, ...]
    layout: Layout
    counts: Mapping[Kind, int]
    losses: tuple[Loss, ...]
    writer: Writer
    hashes: Hashes
    chars: int
    marks: tuple[SettledMark, ...]

    def is_prefix_of(self, form: str, context: Context, state: Frontier) -> bool:
        """Return whether a context in the format `form` begins with this text."""
        return (
            form == self.format
            and state is self.state
            and context.prefix is self.prefix
            and context.summaries is self.summaries
            and len(context.units) > len(self.units)
            and all(map(is_, self.units, context.units))
        )

    def up_to_change(self, form: str, context: Context, state: Frontier) -> "Settled | None":
        """Return the part, up to a mark, that another epoch's context repeats; None if it differs before its units."""
        same = (
            form == self.format
            and context.prefix is self.prefix
            and context.summaries is self.summaries
            and state.note == self.state.note
            and (not state.note or state.floor == self.state.floor)
        )
        if not same:
            return None
        pairs = enumerate(zip(self.units, context.units[:-1], strict=False))
        changed = next(
            (n for n, (one, other) in pairs if one is not other), min(len(self.units), len(context.units) - 1)
        )
        marks = self.marks[: bisect_right(self.marks, max(changed, 0), key=_units)]
        mark = marks[-1]
        return replace(
            self,
            state=state,
            units=self.units[: mark.units],
            layout=replace(self.layout, blocks=self.layout.blocks[: mark.blocks]),
            counts=mark.counts,
            losses=self.losses[: mark.losses],
            writer=self.writer.restored(mark.writer),
            hashes=self.hashes.up_to(mark.writer.messages),
            chars=mark.chars,
            marks=marks,
        )


@dataclass(frozen=True, slots=True)
class WrittenContext:
    """A context as written: its layout, its settled part, and the content that its format cannot express.

    `stable` is the writer before the ephemeral tail, `whole` the one with it.
    """

    layout: Layout
    losses: tuple[Loss, ...]
    settled: Settled
    stable: Writer
    whole: Writer

    @property
    def places(self) -> Places:
        """The places for cache markers, by their event's seq, in order."""
        return self.stable.places

    def request(self, breakpoints: Sequence[Breakpoint]) -> Request:
        """Return the request with cache markers."""
        settled = self.settled
        return request_of(self.stable, self.whole, breakpoints, settled.hashes, len(settled.writer.texts))


def write_text(
    form: str, context: Context, state: Frontier, injected: Sequence[Content] = (), before: Settled | None = None
) -> WrittenContext:
    """Write a context; if it begins with the text `before`, write only the rest."""
    if before is None or not before.is_prefix_of(form, context, state):
        before = (before and before.up_to_change(form, context, state)) or _begin(form, context, state)
    settled = _settle(before, context)
    end = prepare(Layout(blocks=tuple(tail(context, injected))), form)
    stable, whole = write_blocks(settled.writer.copy(), end.layout.blocks)
    layout = replace(settled.layout, blocks=settled.layout.blocks + end.layout.blocks)
    return WrittenContext(layout, settled.losses + _numbered(end.losses, settled.counts), settled, stable, whole)


def _begin(form: str, context: Context, state: Frontier) -> Settled:
    """Return the settled text of the prefix, the summaries and the note."""
    arranged = front(context, state)
    fitted = prepare(arranged, form)
    writer = FORMATS[form].writer(fitted.layout)
    for block in fitted.layout.blocks:
        writer.add(block)
    counts = Counter(block.kind for block in arranged.blocks)
    return Settled(
        format=form,
        state=state,
        prefix=context.prefix,
        summaries=context.summaries,
        units=(),
        layout=fitted.layout,
        counts=counts,
        losses=fitted.losses,
        writer=writer,
        hashes=Hashes(),
        chars=0,
        marks=(SettledMark(0, len(fitted.layout.blocks), len(fitted.losses), 0, counts, writer.mark()),),
    )


def _settle(before: Settled, context: Context) -> Settled:
    """Return `before` extended by the units after it, except the last."""
    units, count = context.units[:-1], len(before.units)
    if count == len(units):
        return replace(before, hashes=Hashes(before.hashes))
    layout, losses, chars, counts = before.layout.blocks, before.losses, before.chars, before.counts
    writer, marks = before.writer.copy(), before.marks
    blocks = list(layout)
    while count < len(units):
        upto = min(len(units), marks[-1].units + MARK_UNITS)
        added = list(unit_blocks(units[count:upto]))
        fitted = prepare(Layout(blocks=tuple(added)), before.format)
        settled = len(writer.texts)
        for block in fitted.layout.blocks:
            writer.add(block)
        blocks += fitted.layout.blocks
        losses += _numbered(fitted.losses, counts)
        counts = Counter(counts) + Counter(block.kind for block in added)
        chars += sum(map(len, writer.texts[settled:]))
        count = upto
        if count == marks[-1].units + MARK_UNITS:
            marks = (*marks, SettledMark(count, len(blocks), len(losses), chars, counts, writer.mark()))
    return replace(
        before,
        units=units,
        layout=replace(before.layout, blocks=tuple(blocks)),
        counts=counts,
        losses=losses,
        writer=writer,
        hashes=Hashes(before.hashes),
        chars=chars,
        marks=marks,
    )


def _units(mark: SettledMark) -> int:
    return mark.units


def _numbered(losses: Sequence[Loss], counts: Mapping[Kind, int]) -> tuple[Loss, ...]:
    """Return the losses with numbers counted from the layout's beginning, where `counts` blocks precede theirs."""
    return tuple(replace(loss, number=loss.number + counts.get(loss.kind, 0)) for loss in losses)
