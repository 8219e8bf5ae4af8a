"""What a provider format is given to write: the context in its final order, one block per visible event.

The arrangement has settled everything that is common to all formats before a format sees it: what is shown as a stub,
that every call's results stand directly behind the assistant's blocks that made the calls (a call still open has a
pending stub there), what is left out. A format only puts blocks into its provider's shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.core.log.block import Block
from app.core.log.events import Json


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole context: `tools` and `system` are the prefix, `blocks` the conversation, most stable first.

    `system` are the system prompts' blocks (their `seq` and content), `tools` the definitions as they were logged, in
    whichever provider's shape (`tools_seq` is their event's seq, 0 if there is none).
    """

    tools: Sequence[Mapping[str, Json]] = ()
    tools_seq: int = 0
    system: tuple[Block, ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A cache breakpoint: behind everything up to and including event `seq`.

    `kind`: system, previous, kept, chain, previous_turn, pre_tail, tail. `hour`: written to live for an hour. `at`: so
    many blocks are looked back over from here to the end of the prefix.
    """

    seq: int
    kind: str
    hour: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Written:
    """A request in a provider's shape, and the breakpoints it really carries."""

    request: dict[str, Json]
    breakpoints: tuple[Breakpoint, ...] = ()
