"""A context as written, and what of it the later contexts of its epoch only append to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_

from app.core.log.block import Block, Kind
from app.core.log.event import Event
from app.core.plan.context.context import Context, Unit
from app.core.plan.context.frontier import Frontier
from app.core.render.arrange import front, tail, unit_blocks
from app.core.render.formats import FORMATS
from app.core.render.formats.fit import Loss, prepare
from app.core.render.formats.layout import Breakpoint, Layout, Places
from app.core.render.formats.writer import Writer
from app.core.render.layers import Content
from app.core.render.request import Hashes, Request, request_of, written


@dataclass(frozen=True, slots=True)
class Settled:
    """What later contexts of an epoch repeat byte for byte: all units but the last, as one format writes them.

    `layout` is prepared for the format, `counts` counts the blocks of each kind before that. `chars` is how much the
    texts hold.
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

    def begins(self, form: str, context: Context, state: Frontier) -> bool:
        """Whether a context in the format `form` begins with this."""
        return (
            form == self.format
            and state is self.state
            and context.prefix is self.prefix
            and context.summaries is self.summaries
            and len(context.units) > len(self.units)
            and all(map(is_, self.units, context.units))
        )


@dataclass(frozen=True, slots=True)
class WrittenContext:
    """A context as written: its layout, its messages, and what is settled of it."""

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
        """The request with cache markers."""
        settled = self.settled
        return request_of(self.stable, self.whole, breakpoints, settled.hashes, len(settled.writer.texts))


def write_text(
    form: str, context: Context, state: Frontier, injected: Sequence[Content] = (), before: Settled | None = None
) -> WrittenContext:
    """Write a context; of one that begins with `before` only what is behind that."""
    if before is None or not before.begins(form, context, state):
        before = _begin(form, context, state)
    settled = _settle(before, context)
    end = prepare(Layout(blocks=tuple(tail(context, injected))), form)
    stable, whole = written(settled.writer.copy(), end.layout.blocks)
    layout = replace(settled.layout, blocks=settled.layout.blocks + end.layout.blocks)
    return WrittenContext(layout, settled.losses + _numbered(end.losses, settled.counts), settled, stable, whole)


def _begin(form: str, context: Context, state: Frontier) -> Settled:
    """The prefix, the summaries and the note, as written."""
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
    )


def _settle(before: Settled, context: Context) -> Settled:
    """`before` with the units behind it, but for the last."""
    units = context.units[len(before.units) : -1]
    if not units:
        return replace(before, hashes=Hashes(before.hashes))
    added: list[Block] = list(unit_blocks(units))
    fitted = prepare(Layout(blocks=tuple(added)), before.format)
    writer = before.writer.copy()
    for block in fitted.layout.blocks:
        writer.add(block)
    return replace(
        before,
        units=context.units[:-1],
        layout=replace(before.layout, blocks=before.layout.blocks + fitted.layout.blocks),
        counts=Counter(before.counts) + Counter(block.kind for block in added),
        losses=before.losses + _numbered(fitted.losses, before.counts),
        writer=writer,
        hashes=Hashes(before.hashes),
        chars=before.chars + sum(map(len, writer.texts[len(before.writer.texts) :])),
    )


def _numbered(losses: Sequence[Loss], counts: Mapping[Kind, int]) -> tuple[Loss, ...]:
    """Losses counted from the beginning of the layout, when `counts` blocks are in front of theirs."""
    return tuple(replace(loss, number=loss.number + counts.get(loss.kind, 0)) for loss in losses)
