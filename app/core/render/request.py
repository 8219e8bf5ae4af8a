"""The request of a context, arranged for its provider and written as JSON.

The text of a context is kept with its view. The next context of the view repeats it and writes only the additions, so
each message is written once.
"""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core import dataclass, replace
from app.core.log.appends import tool_definitions
from app.core.log.event import Block, Event, Kind
from app.core.log.events import EventType
from app.core.plan.state import wording
from app.core.plan.state.context import Context, Unit
from app.core.plan.state.frontier import Frontier
from app.core.render.formats import FORMATS
from app.core.render.formats.fit import Fitted, Loss, prepare
from app.core.render.formats.layout import Breakpoint, Frame, Layout, Mark, Places, Writer
from app.core.render.layers import Content, Layer, enclose

if TYPE_CHECKING:
    from hashlib import _Hash

MARK_UNITS: Final = 8
"""Units between two marks: the most that are written again before the first change."""


def arrange(context: Context, state: Frontier, injected: Sequence[Content] = ()) -> Layout:
    """Return the layout of a planned context: one block for each visible event, then the `injected` content.

    A call without a result gets a pending result; those of the newest round are ephemeral, because the real result will
    replace them. `state` must have adopted late results, as every plan's does.
    """
    begun = _front(context, state)
    units = _blocks(_closed_units(context), state)
    return replace(begun, blocks=(*begun.blocks, *units, *_tail(context, state, injected)))


def _front(context: Context, state: Frontier) -> Layout:
    """Return the layout before the first unit: the prefix, the summaries and the note."""
    tools = next((e for e in context.prefix if e.type is EventType.TOOLS), None)
    note = (Block(Kind.NOTE, state.floor, state.note),) if state.note else ()
    return Layout(
        tools=tuple(tool_definitions(tools.block.content)) if tools else (),
        tools_seq=tools.seq if tools else 0,
        system=tuple(e.block for e in context.prefix if e.type is EventType.SYSTEM_PROMPT and not e.ends_prompts),
        blocks=(*context.summaries, *note),
    )


def _blocks(units: Sequence[Unit], state: Frontier, before: Unit | None = None) -> Iterator[Block]:
    """Yield the blocks of units, which follow the unit `before`, with the line that ends older messages."""
    older_to = state.older_to
    for unit in units:
        if older_to and unit.seq > older_to >= (before.seq if before else 0):
            # It has the seq of the block before it, so a cache marker after that block is after the line too.
            seq = before.all_items[-1].event.seq if before else state.folded_to
            yield Block(Kind.NOTE, seq, wording.RESUMED, replaced=True)
        yield from unit.blocks
        before = unit


def _closed_units(context: Context) -> tuple[Unit, ...]:
    """Return all units, without the last one if it has open calls."""
    return context.units[:-1] if context.units and context.units[-1].open_calls else context.units


def _tail(context: Context, state: Frontier, injected: Sequence[Content]) -> tuple[Block, ...]:
    """Return the blocks that the next request does not repeat: of a last unit with open calls, and injected content."""
    blocks: list[Block] = []
    if context.units and (waiting := len(context.units[-1].open_calls)):
        blocks += _blocks(context.units[-1:], state, context.units[-2] if len(context.units) > 1 else None)
        blocks[-waiting:] = [replace(pending, ephemeral=True) for pending in blocks[-waiting:]]
    last = context.items[-1].event.seq if context.items else 0
    return (*blocks, *(Block(Kind.NOTE, last, content, ephemeral=True) for content in injected))


STEP_BYTES: Final = 16_384
"""Bytes between two stored states of a hash: hashing this many takes less time than any other part of a call."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a provider: `body` is its canonical JSON, `sha256` the hash of `body`.

    `prefix_sha256` is the hash of the request without cache markers and without its ephemeral tail.
    """

    body: bytes
    sha256: bytes
    prefix_sha256: bytes
    breakpoints: tuple[Breakpoint, ...]


class Hashes:
    """SHA-256 of requests that begin with the same messages, computed from stored states.

    States after some of the settled messages are stored for each opening.
    """

    def __init__(self, known: "Hashes | None" = None) -> None:
        self._states: dict[bytes, tuple[tuple[int, _Hash], ...]] = {} if known is None else dict(known._states)

    def sha256(self, frame: Frame, texts: Sequence[bytes], settled: int) -> bytes:
        """Return the hash of a request with these messages, the first `settled` of which all later requests repeat.

        States after settled messages, STEP_BYTES apart, are stored for the opening, each with the number of messages
        that it covers.
        """
        states = self._states.get(frame.opening) or ((0, hashlib.sha256(frame.opening)),)
        count, state = states[-1]
        first, size = count, 0
        for number in range(count, settled):
            size += len(texts[number])
            if size >= STEP_BYTES:
                state = state.copy()
                added = b",".join(texts[first : number + 1])
                state.update(b"," + added if first else added)
                states = (*states, (number + 1, state))
                first, size = number + 1, 0
        self._states[frame.opening] = states
        count, state = next(known for known in reversed(states) if known[0] <= settled)
        state = state.copy()
        rest = b",".join(texts[count:])
        state.update(b"," + rest if count and rest else rest)
        state.update(frame.closing)
        return state.digest()

    def up_to(self, messages: int) -> "Hashes":
        """Return a copy that covers the first `messages` messages only."""
        known = Hashes(self)
        for opening, states in known._states.items():
            known._states[opening] = tuple(one for one in states if one[0] <= messages)
        return known


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
    """The text of a context without its tail, in one format; the view's next context begins with it or a part of it.

    `layout` is prepared for the format, `counts` counts the blocks of each kind before that. `chars` is the size of the
    texts. `marks` are the positions up to which a context may repeat it: one every MARK_UNITS, and one where the
    units begin that this context added.
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

    def repeated_by(self, form: str, context: Context, state: Frontier, units: tuple[Unit, ...]) -> "Settled | None":
        """Return the part that a context repeats: all of it, or up to a mark; None if they differ before the units.

        `units` are the context's closed units.
        """
        same_front = (
            form == self.format
            and context.prefix is self.prefix
            and context.summaries is self.summaries
            and state.note == self.state.note
            and (not state.note or state.floor == self.state.floor)
        )
        if not same_front:
            return None
        if len(units) >= len(self.units) and all(map(is_, self.units, units)):
            return self
        pairs = enumerate(zip(self.units, units, strict=False))
        changed = next((n for n, (one, other) in pairs if one is not other), min(len(self.units), len(units)))
        marks = self.marks[: bisect_right(self.marks, changed, key=lambda mark: mark.units)]
        mark = marks[-1]
        return replace(
            self,
            units=self.units[: mark.units],
            layout=replace(self.layout, blocks=self.layout.blocks[: mark.blocks]),
            counts=mark.counts,
            losses=self.losses[: mark.losses],
            writer=self.writer.restored(mark.writer),
            hashes=self.hashes.up_to(mark.writer.messages),
            chars=mark.chars,
            marks=marks,
        )

    def extended(self, units: tuple[Unit, ...], state: Frontier) -> "Settled":
        """Return the text of `units`, the first of which it holds already; nothing is written into this one."""
        count, hashes = len(self.units), Hashes(self.hashes)
        if count == len(units):
            return replace(self, state=state, hashes=hashes)
        blocks, losses, chars, counts = [*self.layout.blocks], self.losses, self.chars, self.counts
        writer = self.writer.copy()
        marks = self.marks[:-1] if self.marks[-1].units % MARK_UNITS else self.marks
        while count < len(units):
            if count > marks[-1].units:
                marks = (*marks, SettledMark(count, len(blocks), len(losses), chars, counts, writer.mark()))
            upto = min(len(units), count + MARK_UNITS - count % MARK_UNITS)
            added = tuple(_blocks(units[count:upto], state, units[count - 1] if count else None))
            fitted = prepare(Layout(blocks=added), self.format)
            known = len(writer.texts)
            for block in fitted.layout.blocks:
                writer.add(block)
            blocks += fitted.layout.blocks
            if fitted.losses:
                losses += _numbered(fitted.losses, counts)
            counts = {**counts}
            for block in added:
                counts[block.kind] = counts.get(block.kind, 0) + 1
            chars += sum(map(len, writer.texts[known:]))
            count = upto
        return replace(
            self,
            state=state,
            units=units,
            layout=replace(self.layout, blocks=tuple(blocks)),
            counts=counts,
            losses=losses,
            writer=writer,
            hashes=hashes,
            chars=chars,
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
        return _request(self.stable, self.whole, breakpoints, settled.hashes, len(settled.writer.texts))


def write_text(
    form: str, context: Context, state: Frontier, injected: Sequence[Content] = (), before: Settled | None = None
) -> WrittenContext:
    """Write a context; write only the rest if it repeats the text `before` or a part of it."""
    units = _closed_units(context)
    known = before.repeated_by(form, context, state, units) if before else None
    settled = (known or _begin(form, context, state)).extended(units, state)
    tail = _tail(context, state, injected)
    if not tail and settled.writer.ended:
        return WrittenContext(settled.layout, settled.losses, settled, settled.writer, settled.writer)
    end = prepare(Layout(blocks=tail), form) if tail else Fitted(Layout())
    stable, whole = _write_tail(settled.writer.copy(), end.layout.blocks)
    layout = replace(settled.layout, blocks=settled.layout.blocks + end.layout.blocks)
    losses = settled.losses + _numbered(end.losses, settled.counts)
    return WrittenContext(layout, losses, settled, stable, whole)


def _begin(form: str, context: Context, state: Frontier) -> Settled:
    """Return the settled text of the prefix, the summaries and the note."""
    arranged = _front(context, state)
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


def _numbered(losses: Sequence[Loss], counts: Mapping[Kind, int]) -> tuple[Loss, ...]:
    """Return the losses with numbers counted from the layout's beginning, where `counts` blocks precede theirs."""
    return tuple(replace(loss, number=loss.number + counts.get(loss.kind, 0)) for loss in losses)


def write(form: str, layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Request:
    """Write the layout in the format `form`, with those of the breakpoints that the format supports."""
    stable, whole = _write_tail(FORMATS[form].writer(layout), layout.blocks)
    return _request(stable, whole, breakpoints, Hashes(), 0)


def _write_tail(writer: Writer, blocks: Sequence[Block]) -> tuple[Writer, Writer]:
    """Return the writer with the blocks before the ephemeral tail, and one with all; the same one without a tail.

    Both are ended; the blocks are added to `writer` itself.
    """
    stable = next((number for number, block in enumerate(blocks) if block.ephemeral), len(blocks))
    for block in blocks[:stable]:
        writer.add(block)
    whole = writer
    if stable < len(blocks):
        whole = writer.copy()
        for block in blocks[stable:]:
            whole.add(block)
        whole.end()
    writer.end()
    return writer, whole


def _request(stable: Writer, whole: Writer, breakpoints: Sequence[Breakpoint], hashes: Hashes, settled: int) -> Request:
    """Return the request of the two writers that `_write_tail` returns, with cache markers.

    `settled` is the number of its messages that all requests of `hashes` have in common.
    """
    marked = whole.marked(breakpoints, stable.places)
    texts = whole.texts
    if marked.messages:
        texts = texts.copy()
        for number, text in marked.messages.items():
            texts[number] = text
    sha256 = hashes.sha256(marked.frame, texts, min((settled, *marked.messages)))
    prefix_sha256 = sha256
    if marked.placed or stable is not whole:
        prefix_sha256 = hashes.sha256(stable.frame, stable.texts, settled)
    return Request(
        b"".join((marked.frame.opening, b",".join(texts), marked.frame.closing)), sha256, prefix_sha256, marked.placed
    )


def enclose_injection(name: str, content: Content) -> Content:
    """Return an injection's content in the tags that show its name."""
    return enclose("injected", content, name=name)


def ephemeral_content(
    notice: str | None, injections: Iterable[tuple[str, Content]], layers: Iterable[Layer] = ()
) -> list[Content]:
    """Return the content after the conversation: the layers, then the notice and the injections (name, content)."""
    own: list[Content] = [] if notice is None else [notice]
    return [layer.shown for layer in layers] + own + [enclose_injection(name, content) for name, content in injections]
