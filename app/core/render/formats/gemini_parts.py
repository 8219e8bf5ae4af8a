"""Gemini's parts, kept verbatim with a `type` that names their kind for other formats and the counter.

The kind of a part of Gemini's follows from the name of the field that holds its data. Names are read in the API's
notation (`inlineData`) and in that of its Python SDK (`inline_data`), and each part is sent back in its own.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.log.events import Json, Part
from app.core.render.formats.parts import (
    EMPTY,
    Image,
    Piece,
    Text,
    content_or_refusal,
    is_only_reasoning,
    is_own,
    message_object,
    pieces,
    plain_text,
    without,
)

NAME: Final = "gemini"
CALLS: Final = ("functionCall", "function_call")
RESPONSES: Final = ("functionResponse", "function_response")
SIGNATURES: Final = ("thoughtSignature", "thought_signature")
UNKNOWN: Final = "part"
"""The type of a part that holds nothing known, or has a `type` of its own."""
_DATA: Final = frozenset(
    {"inlineData", "inline_data", "fileData", "file_data", "executableCode", "executable_code"}
    | {"codeExecutionResult", "code_execution_result", "toolCall", "tool_call", "toolResponse", "tool_response"}
)


def read_parts(message: Mapping[str, Json], index: int) -> list[dict[str, Json]]:
    """Return the parts of a content, without the nulls that an SDK sets. Raises InvalidMessage."""
    found = message.get("parts")
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidMessage("parts must be a list of parts", index=index, field="parts")
    return [present(message_object(part, index, "parts")) for part in found]


def present(value: Mapping[str, Json]) -> dict[str, Json]:
    """Return an object without its nulls."""
    return {name: child for name, child in value.items() if child is not None}


def key_of(part: Part, names: Sequence[str]) -> str | None:
    """Return the first of `names` that is a field of the part; None if none is."""
    return next((name for name in names if name in part), None)


def typed(part: Part) -> Part:
    """Return a part as an event holds it: with the type of its data."""
    if "type" in part:
        return {"type": UNKNOWN, "part": part}
    kind = next((name for name in part if name in _DATA), UNKNOWN)
    if isinstance(part.get("text"), str):
        kind = "reasoning" if part.get("thought") is True else "text"
    return {"type": kind, **part}


def untyped(part: Part) -> Part:
    """Return a part as the provider defines it."""
    if part.get("type") == UNKNOWN and isinstance(part.get("part"), Mapping):
        inner: Part = part["part"]
        return inner
    return without(part, "type")


def own_parts(content: Sequence[Part]) -> list[Part]:
    """Return the parts of this format's content, without empty parts and blank texts that carry no signature."""
    return [shown for part in content if (shown := untyped(part)) and not _is_blank(shown)]


def _is_blank(part: Part) -> bool:
    text = part.get("text")
    return isinstance(text, str) and not text.strip() and key_of(part, SIGNATURES) is None


def message_parts(block: Block) -> list[Part]:
    """Return a message's parts; empty only for reasoning of another provider."""
    if is_own(block, NAME) and isinstance(block.content, list):
        return own_parts(block.content) or [text_part(EMPTY)]
    content = content_or_refusal(block)
    if block.kind is Kind.ASSISTANT:  # of other providers' content, only text may be the model's
        text = plain_text(content)
        return [text_part(text)] if text else [] if is_only_reasoning(content) else [text_part(EMPTY)]
    return [piece_part(piece) for piece in pieces(content)] or [text_part(EMPTY)]


def text_part(text: str) -> Part:
    """Return a text part."""
    return {"text": text}


def piece_part(piece: Piece) -> Part:
    """Return a piece of another format's content in this provider's shape."""
    if isinstance(piece, Text):
        return text_part(piece.text)
    if isinstance(piece, Image):
        return _held(piece.media_type, piece.data, piece.url)
    return text_part(piece.text) if piece.text is not None else _held(piece.media_type, piece.data, piece.url)


def _held(media_type: str, data: str | None, url: str | None) -> Part:
    if data is not None:
        return {"inlineData": {"mimeType": media_type, "data": data}}
    return {"fileData": {"mimeType": media_type, "fileUri": url}}
