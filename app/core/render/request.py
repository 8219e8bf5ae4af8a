"""The request of a context, arranged for its provider and written as JSON."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from app.core.log.block import Block, Kind
from app.core.log.events import EventType
from app.core.log.parse import tool_definitions
from app.core.plan.state.context import Context, Unit
from app.core.plan.state.frontier import Frontier
from app.core.render.formats import FORMATS
from app.core.render.formats.layout import Breakpoint, Frame, Layout, Writer
from app.core.render.layers import Content, Layer, enclose

if TYPE_CHECKING:
    from hashlib import _Hash


def arrange(context: Context, state: Frontier, injected: Sequence[Content] = ()) -> Layout:
    """Return the layout of a planned context: one block for each visible event, then the `injected` content.

    A call without a result gets a pending result; those of the newest round are ephemeral, because the real result will
    replace them. `state` must have adopted late results, as every plan's does.
    """
    begun = front(context, state)
    return replace(begun, blocks=(*begun.blocks, *unit_blocks(context.units[:-1]), *tail(context, injected)))


def front(context: Context, state: Frontier) -> Layout:
    """Return the layout before the first unit: the prefix, the summaries and the note."""
    tools = next((e for e in context.prefix if e.type is EventType.TOOLS), None)
    note = (Block(Kind.NOTE, state.floor, state.note),) if state.note else ()
    return Layout(
        tools=tuple(tool_definitions(tools.block.content)) if tools else (),
        tools_seq=tools.seq if tools else 0,
        system=tuple(e.block for e in context.prefix if e.type is EventType.SYSTEM_PROMPT and not e.ends_prompts),
        blocks=(*context.summaries, *note),
    )


def unit_blocks(units: Iterable[Unit]) -> Iterator[Block]:
    """Return the blocks of units."""
    return chain.from_iterable(unit.blocks for unit in units)


def tail(context: Context, injected: Sequence[Content]) -> list[Block]:
    """Return the blocks of the last unit, and the injected content."""
    blocks = list(unit_blocks(context.units[-1:]))
    if context.units and (waiting := len(context.units[-1].open_calls)):
        blocks[-waiting:] = [replace(pending, ephemeral=True) for pending in blocks[-waiting:]]
    last = context.items[-1].event.seq if context.items else 0
    return [*blocks, *(Block(Kind.NOTE, last, content, ephemeral=True) for content in injected)]


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
        """Return the hash of a request with these messages, the first `settled` of which all later requests repeat."""
        states = self._extended(frame.opening, texts, settled)
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

    def _extended(self, opening: bytes, texts: Sequence[bytes], settled: int) -> "tuple[tuple[int, _Hash], ...]":
        """Return the states after settled messages, STEP_BYTES apart, each with the number of messages it covers."""
        states = self._states.get(opening) or ((0, hashlib.sha256(opening)),)
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
        self._states[opening] = states
        return states


def write(form: str, layout: Layout, breakpoints: Sequence[Breakpoint] = ()) -> Request:
    """Write the layout in the format `form`, with those of the breakpoints that the format supports."""
    stable, whole = write_blocks(FORMATS[form].writer(layout), layout.blocks)
    return request_of(stable, whole, breakpoints, Hashes(), 0)


def write_blocks(writer: Writer, blocks: Sequence[Block]) -> tuple[Writer, Writer]:
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


def request_of(
    stable: Writer, whole: Writer, breakpoints: Sequence[Breakpoint], hashes: Hashes, settled: int
) -> Request:
    """Return the request of the two writers that `write_blocks` returns, with cache markers.

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
