"""What a provider format is given to write: the context in its final order, one block per visible event.

The arrangement has settled everything that is common to all formats before a format sees it: what is shown as a stub,
that every call's results stand directly behind the assistant's blocks that made the calls (a call still open has a
pending stub there), what is left out. A format only puts blocks into its provider's shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from app.core.events import Json, Part


class Kind(StrEnum):
    """Who a block speaks for."""

    SYSTEM = "system"  # a system message inside the conversation (the system prompt is not a block)
    USER = "user"
    ASSISTANT = "assistant"
    CALL = "call"  # one tool call of the assistant
    RESULT = "result"  # its result, always behind the assistant blocks of its round
    NOTE = "note"  # our own words to the model, e.g. what was left out


@dataclass(frozen=True, slots=True)
class Block:
    """One visible event, or a synthetic line that stands for events.

    `seq` is the event's; for a synthetic block it is the last seq it stands for (a pending stub: its call's).
    `replaced` means `content` is ours (a stub, a shortened result), not the event's own.
    `ephemeral` blocks stand behind the last cache breakpoint and may differ in the next call.
    """

    kind: Kind
    seq: int
    content: str | Sequence[Part] | None = None
    call_id: str | None = None
    tool: str | None = None
    arguments: Json = None
    is_error: bool = False
    native: Mapping[str, Json] | None = None
    replaced: bool = False
    ephemeral: bool = False


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
