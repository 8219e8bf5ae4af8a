"""The input of a provider format: the context in its final order, one block for each visible event.

Everything common to all formats is decided before a format gets the layout: which events are left out or shown as
stubs, and that results directly follow the assistant's blocks with their calls (an open call has a pending result
there). A format only puts blocks into its provider's shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.log.block import Block
from app.core.log.events import Json


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


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A cache breakpoint after event `seq`. `render/breakpoints.choose` describes its `kind`.

    With `hour` the entry is written to live for an hour. `at` is the number of blocks after the prefix up to here, as
    lookback counts them.
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
