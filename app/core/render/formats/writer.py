"""Messages that are written once: what no later block can change becomes JSON, and is not looked at again."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from app.core.log.block import Block
from app.core.log.events import REPLACEMENT, Json, canonical_json
from app.core.render.formats.layout import Breakpoint, Places

_ESCAPES: Final = re.compile(r"\\(?:ud[89a-f][0-9a-f]{2}|.)")


class Frame(NamedTuple):
    """The text of a request in front of its messages and behind them."""

    opening: bytes
    closing: bytes


class Marked(NamedTuple):
    """A request's cache markers: the frame with them, the messages with them by number, and the breakpoints set."""

    frame: Frame
    messages: Mapping[int, bytes]
    placed: tuple[Breakpoint, ...]


class Mark(NamedTuple):
    """Where a writer stood: how many messages were settled, and what it held beside them."""

    messages: int
    held: Mapping[str, Any]


class Writer(ABC):
    """Writes the messages of a request, block by block.

    Only the newest message can still change; the others are settled, and `texts` holds their JSON. A writer that is
    kept for later is not added to: its copy is.
    """

    frame: Frame
    """Without cache markers."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self._newest: Any = None

    @abstractmethod
    def add(self, block: Block) -> None:
        """Add the next block."""

    def end(self) -> None:
        """Settle the newest message; no block may follow."""
        self._settle()

    def copy(self) -> Self:
        """A writer with the same messages, to which blocks can be added apart."""
        return self.back(self.mark())

    def mark(self) -> Mark:
        """Where it stands, for `back`; little, however much has been written."""
        return Mark(len(self.texts), self._held())

    def back(self, mark: Mark) -> Self:
        """The writer as it stood at one of its marks; not added to either, but its copy is."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.update(mark.held)
        other.texts = self.texts[: mark.messages]
        return other

    def _held(self) -> dict[str, Any]:
        """The attributes that blocks change beside the settled messages, as they are now."""
        return {"_newest": self._newest}

    @property
    def places(self) -> Places:
        """The places for cache markers in the settled messages, by their event's seq, in order."""
        return {}

    def marked(self, points: Sequence[Breakpoint], places: Places) -> Marked:
        """The markers for these breakpoints at their places; none in formats that carry none."""
        return Marked(self.frame, {}, ())

    def _begin(self, message: Any) -> None:
        """Begin a message; the one before it is settled."""
        self._settle()
        self._newest = message

    def _settle(self) -> None:
        if self._newest is not None:
            self.texts.append(sendable(self._newest))
            self._newest = None


def framed(before: Mapping[str, Json], messages: str, behind: Mapping[str, Json]) -> Frame:
    """The frame of a request with these fields before and behind the field `messages`."""
    opening = sendable({**before, messages: []}).removesuffix(b"]}")
    return Frame(opening, b"]" + (b"," + sendable(behind)[1:] if behind else b"}"))


def sendable(value: Json) -> bytes:
    """Canonical JSON; lone surrogates, which no provider accepts, are replaced."""
    text = canonical_json(value)
    if "\\ud" in text:
        text = _ESCAPES.sub(lambda found: REPLACEMENT if found[0].startswith("\\ud") else found[0], text)
    return text.encode()
