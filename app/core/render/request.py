"""From a layout to the bytes of a request, for new calls and for those rendered again alike."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.core.log.block import Block
from app.core.render.formats import FORMATS
from app.core.render.formats.layout import Breakpoint, Layout
from app.core.render.formats.writer import Frame, Writer
from app.core.render.layers import Content, Layer, enclose

if TYPE_CHECKING:
    from hashlib import _Hash

STEP_BYTES: Final = 16_384
"""Between two states of a hash that are kept: hashing this much takes less than anything else of a call."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent to the provider: `body` is its canonical JSON, `sha256` the hash of that.

    `prefix_sha256` is the hash of the request without cache markers and without its ephemeral tail.
    """

    body: bytes
    sha256: bytes
    prefix_sha256: bytes
    breakpoints: tuple[Breakpoint, ...]


class Hashes:
    """SHA-256 of requests whose first messages are known, continued from what was hashed before.

    For each opening it keeps the states behind some of the messages that are settled for good.
    """

    def __init__(self, known: "Hashes | None" = None) -> None:
        self._states: dict[bytes, tuple[tuple[int, _Hash], ...]] = {} if known is None else dict(known._states)

    def sha256(self, frame: Frame, texts: Sequence[bytes], settled: int) -> bytes:
        """The hash of a request with these messages, of which `settled` are the same in all later requests."""
        states = self._extended(frame.opening, texts, settled)
        count, state = next(known for known in reversed(states) if known[0] <= settled)
        state = state.copy()
        rest = b",".join(texts[count:])
        state.update(b"," + rest if count and rest else rest)
        state.update(frame.closing)
        return state.digest()

    def up_to(self, messages: int) -> "Hashes":
        """What is known of the first `messages` messages, to be continued apart."""
        known = Hashes(self)
        for opening, states in known._states.items():
            known._states[opening] = tuple(one for one in states if one[0] <= messages)
        return known

    def _extended(self, opening: bytes, texts: Sequence[bytes], settled: int) -> "tuple[tuple[int, _Hash], ...]":
        """The states behind settled messages, STEP_BYTES apart, each with the number of messages in front of it."""
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
    """Write the layout in the format `form`, with those of the breakpoints that the format can carry."""
    stable, whole = written(FORMATS[form].writer(layout), layout.blocks)
    return request_of(stable, whole, breakpoints, Hashes(), 0)


def written(writer: Writer, blocks: Sequence[Block]) -> tuple[Writer, Writer]:
    """The writer with the blocks in front of the ephemeral tail, and with all of them; the same one if there is none.

    Both are ended; `writer` is added to.
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
    """The request that was written, as `written` returns it, with cache markers.

    `settled` is how many of its messages are the same in all requests that `hashes` is for.
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
    """An injection's content in the tags that show its name."""
    return enclose("injected", content, name=name)


def ephemeral_content(
    notice: str | None, injections: Iterable[tuple[str, Content]], layers: Iterable[Layer] = ()
) -> list[Content]:
    """The content behind the conversation: the layers, then for this call only the notice and the (name, content) of
    each injection."""
    own: list[Content] = [] if notice is None else [notice]
    return [layer.shown for layer in layers] + own + [enclose_injection(name, content) for name, content in injections]
