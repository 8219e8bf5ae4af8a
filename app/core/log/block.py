"""Blocks: the neutral form of the parts of messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.core.log.events import Json, Part

TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
REASONING_PARTS: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
IMAGE_PARTS: Final = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
BLOB_PARTS: Final = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
"""Gemini's types of images and files; the type is also the field that holds the data."""


class Kind(StrEnum):
    """The role of a block."""

    SYSTEM = "system"  # a system message inside the conversation (the system prompt is not a block)
    USER = "user"
    ASSISTANT = "assistant"
    CALL = "call"  # one tool call of the assistant
    RESULT = "result"  # its result, always after the assistant blocks of its round
    NOTE = "note"  # a message of ours to the model, e.g. a list of what was left out


ASSISTANT_KINDS: Final = frozenset({Kind.ASSISTANT, Kind.CALL})
"""The kinds of blocks that the model wrote."""
ROUND_KINDS: Final = ASSISTANT_KINDS | {Kind.RESULT}


@dataclass(frozen=True, slots=True)
class Block:
    """One visible event, or a synthetic line in place of events.

    `seq` is the event's; for a synthetic block, the last seq that it replaces (for a pending stub, its call's seq).
    `replaced`: `content` is ours (a stub, a shortened result), not the event's own. `ephemeral` blocks come after the
    last cache breakpoint and may differ in the next call.
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
