"""A visible event as it is rendered: whom it speaks for, and what is shown of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.core.log.events import Json, Part


class Kind(StrEnum):
    """Who a block speaks for."""

    SYSTEM = "system"  # a system message inside the conversation (the system prompt is not a block)
    USER = "user"
    ASSISTANT = "assistant"
    CALL = "call"  # one tool call of the assistant
    RESULT = "result"  # its result, always behind the assistant blocks of its round
    NOTE = "note"  # our own words to the model, e.g. what was left out


ASSISTANT_KINDS: Final = frozenset({Kind.ASSISTANT, Kind.CALL})
"""What the model wrote."""
ROUND_KINDS: Final = ASSISTANT_KINDS | {Kind.RESULT}


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
