"""The layout that formats write, the writer that they share, and the neutral format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from app.core import dataclass, field
from app.core.log.event import Block, Kind
from app.core.log.events import REPLACEMENT, SURROGATE, Json, canonical_json, json_pieces
from app.core.render.formats.parts import BEGINNING, IMAGES_ABOVE, Image, Piece, Text

TOOLS: Final = "tools"


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole context: `tools` and `system` are the prefix, `blocks` the conversation, the most stable first.

    `system` holds the system prompts' blocks, `tools` the definitions as they were logged, in any provider's shape, and
    `tools_seq` the seq of their event, 0 without one.
    """

    tools: Sequence[Mapping[str, Json]] = ()
    tools_seq: int = 0
    system: tuple[Block, ...] = ()
    blocks: tuple[Block, ...] = ()

    @property
    def prefix(self) -> tuple[Block, ...]:
        """The blocks before the conversation: the tool definitions as one, then the system prompts."""
        if not self.tools_seq:
            return self.system
        return (Block(Kind.SYSTEM, self.tools_seq, canonical_json(list(self.tools)), tool=TOOLS), *self.system)


def kind_of(block: Block) -> str:
    """Return the kind of a block: `tools` for the tool definitions."""
    return TOOLS if block.kind is Kind.SYSTEM and block.tool == TOOLS else block.kind.value


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A cache breakpoint after event `seq`. `render/breakpoints.choose_breakpoints` describes its `kind`.

    The entry lives for an hour if `hour` is set. `at` is the number of blocks after the prefix up to here, as lookback
    counts them.
    """

    seq: int
    kind: str
    hour: bool = False
    at: int = field(default=0, compare=False)


class Place(NamedTuple):
    """A place for a cache marker: the last content block of the event `seq` that can carry one.

    It is block number `at` after the prefix, as lookback counts them, and `part` of the message number `message`.
    """

    seq: int
    at: int
    message: int
    part: int


Places = dict[int, Place]
"""Places by their event's seq, in the order of their blocks."""


class Frame(NamedTuple):
    """The text of a request before and after its messages."""

    opening: bytes
    closing: bytes


class Marked(NamedTuple):
    """A request's cache markers: the frame and, by number, the messages that carry them, and the breakpoints set."""

    frame: Frame
    messages: Mapping[int, bytes]
    placed: tuple[Breakpoint, ...]


class Mark(NamedTuple):
    """The state of a writer at some time: the number of settled messages, and its other attributes."""

    messages: int
    attributes: Mapping[str, Any]


class Writer(ABC):
    """Writes the messages of a request, block by block.

    Only the newest message can still change; the others are settled, and `texts` holds their JSON. Blocks are added to
    a copy of a writer that is kept for later contexts, never to the writer itself.
    """

    frame: Frame
    """The frame without cache markers."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self._newest: Any = None

    @abstractmethod
    def add(self, block: Block) -> None:
        """Add the next block."""

    def end(self) -> None:
        """Settle the newest message; no block may follow."""
        self._settle()

    @property
    def ended(self) -> bool:
        """Whether `end` would change nothing."""
        return self._newest is None and bool(self.texts)

    def copy(self) -> Self:
        """Return an independent writer with the same messages."""
        return self.restored(self.mark())

    def mark(self) -> Mark:
        """Return a mark for `restored`; its size does not depend on the number of messages."""
        return Mark(len(self.texts), self._attributes())

    def restored(self, mark: Mark) -> Self:
        """Return the writer as of one of its marks. Blocks may be added to its copy only."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.update(mark.attributes)
        other.texts = self.texts[: mark.messages]
        return other

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes, other than the settled messages, that added blocks change."""
        return {"_newest": self._newest}

    @property
    def places(self) -> Places:
        """The places for cache markers in the settled messages, by their event's seq, in order."""
        return {}

    def marked(self, points: Sequence[Breakpoint], places: Places) -> Marked:
        """Return the markers for these breakpoints at their places; none in formats without markers."""
        return Marked(self.frame, {}, ())

    def _begin(self, message: Any) -> None:
        """Settle the newest message and begin the next."""
        self._settle()
        self._newest = message

    def _write(self, message: Json) -> None:
        """Settle the newest message, and write one that no block can join."""
        self._settle()
        self.texts.append(sendable(message))

    def _settle(self) -> None:
        if self._newest is not None:
            self.texts.append(sendable(self._newest))
            self._newest = None


class MessageWriter(Writer):
    """Writes a provider's messages, at least one; each kind of block has a method.

    `_images` are those of the round's results, for providers whose results hold text only. They follow the results.
    """

    _images: tuple[Image, ...] = ()

    def add(self, block: Block) -> None:
        """Add the next block."""
        if block.kind is Kind.RESULT:
            self._result(block)
            return
        if self._images:
            self._flush_images()
        if block.kind is Kind.CALL:
            self._call(block)
        elif block.kind is Kind.ASSISTANT:
            self._say(block)
        else:
            self._plain(block)

    @property
    def ended(self) -> bool:
        """Whether `end` would change nothing."""
        return super().ended and not self._images

    def end(self) -> None:
        """Settle the newest message; no block may follow."""
        if self._images:
            self._flush_images()
        self._settle()
        if not self.texts:
            self._open()

    @abstractmethod
    def _call(self, block: Block) -> None: ...

    @abstractmethod
    def _result(self, block: Block) -> None: ...

    @abstractmethod
    def _say(self, block: Block) -> None: ...

    @abstractmethod
    def _plain(self, block: Block) -> None:
        """Add a message of the system or the user."""

    def _show(self, pieces: Sequence[Piece]) -> None:
        """Add a user's message of our own. A writer that puts images into `_images` must have this method."""
        raise NotImplementedError

    def _open(self) -> None:
        """Write the first message of a request that lacks one."""
        self.texts.append(sendable({"role": "user", "content": BEGINNING}))

    def _attributes(self) -> dict[str, Any]:
        return {"_newest": self._newest, "_images": self._images}

    def _flush_images(self) -> None:
        self._show((Text(IMAGES_ABOVE), *self._images))
        self._images = ()


def framed(before: Mapping[str, Json], messages: str, after: Mapping[str, Json]) -> Frame:
    """Return the frame of a request with these fields, unless empty, before and after the field `messages`."""
    opening = sendable({**_filled(before), messages: []}).removesuffix(b"]}")
    closing = _filled(after)
    return Frame(opening, b"]" + (b"," + sendable(closing)[1:] if closing else b"}"))


def _filled(fields: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if value}


def sendable(value: Json) -> bytes:
    """Return canonical JSON in which lone surrogates, which no provider accepts, are replaced."""
    text = "".join(json_pieces(value, 0))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return SURROGATE.sub(REPLACEMENT, text).encode()


NAME: Final = "blocks"
_BLOCK_FIELDS: Final = ("content", "call_id", "tool", "arguments", "is_error", "replaced")
"""Fields of a block that are written as they are, unless they are None or False."""


class BlocksWriter(Writer):
    """Writes the tools and the system prompts, then the conversation."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.frame = framed({}, "blocks", {})
        if layout.tools_seq:
            self._begin({"seq": layout.tools_seq, "kind": "tools", "content": list(layout.tools)})
        for block in layout.system:
            self.add(block)

    def add(self, block: Block) -> None:
        """Add the next block."""
        fields = ((name, getattr(block, name)) for name in _BLOCK_FIELDS)
        shown = {name: value for name, value in fields if value is not None and value is not False}
        self._begin({"seq": block.seq, "kind": block.kind.value, **shown})
