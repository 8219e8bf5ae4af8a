"""Content in Anthropic's shapes: its own parts verbatim, all others as text, images and documents."""

from collections.abc import Mapping, Sequence
from typing import Final

from app.core.log.event import Block, Kind
from app.core.log.events import Json, Part
from app.core.render.formats.parts import (
    EMPTY,
    NO_OUTPUT,
    Image,
    Piece,
    Text,
    content_or_refusal,
    is_only_reasoning,
    is_own,
    non_blank,
    piece_text,
    pieces,
    plain_text,
    without,
)

NAME: Final = "anthropic"


def unmarked(content: str | Sequence[Part] | None) -> str | list[Part] | None:
    """Return content without the client's cache markers."""
    return (
        content if content is None or isinstance(content, str) else [without(part, "cache_control") for part in content]
    )


def text_part(text: str) -> dict[str, Json]:
    """Return a text part."""
    return {"type": "text", "text": text}


def system_parts(block: Block) -> list[Part]:
    """Return a system prompt's parts, never empty."""
    if is_own(block, NAME) and not isinstance(block.content, str) and (shown := non_blank(block.content or ())):
        return shown
    return [text_part(plain_text(block.content) or EMPTY)]


def message_parts(block: Block) -> list[Part]:
    """Return a message's parts without blank texts; empty only for reasoning that another provider signed."""
    if is_own(block, NAME) and not isinstance(block.content, str) and block.content:
        return non_blank(block.content) or [text_part(EMPTY)]
    content = content_or_refusal(block)
    if block.kind is not Kind.ASSISTANT:
        return [_part(piece) for piece in pieces(content)] or [text_part(EMPTY)]
    signed = [] if content is None or isinstance(content, str) else [_thinking(part) for part in content]
    found = [
        *(part for part in signed if part is not None),
        *(text_part(piece_text(piece)) for piece in pieces(content)),
    ]
    return found or ([] if is_only_reasoning(content) else [text_part(EMPTY)])


def result_content(block: Block) -> Mapping[str, Json]:
    """Return a tool result's `content` field; {} for a result of this format without content."""
    if is_own(block, NAME):
        if block.content is None:
            return {}
        return {"content": block.content if isinstance(block.content, str) else non_blank(block.content)}
    found = pieces(block.content)
    if all(isinstance(piece, Text) for piece in found):
        return {"content": plain_text(block.content) or NO_OUTPUT}
    return {"content": [_part(piece) for piece in found]}


def _thinking(part: Part) -> Part | None:
    """Return reasoning with its signature; None if the part is not reasoning or has no signature to verify."""
    kind, signature = part.get("type"), part.get("signature")
    if kind == "redacted_thinking" and isinstance(part.get("data"), str):
        return {"type": kind, "data": part["data"]}
    thinking = part.get("thinking", part.get("text"))
    if kind in ("thinking", "reasoning") and isinstance(signature, str) and signature and isinstance(thinking, str):
        return {"type": "thinking", "thinking": thinking, "signature": signature}
    return None


def _part(piece: Piece) -> Part:
    if isinstance(piece, Text):
        return text_part(piece.text)
    if isinstance(piece, Image):
        if piece.url is not None:
            return {"type": "image", "source": {"type": "url", "url": piece.url}}
        return {"type": "image", "source": {"type": "base64", "media_type": piece.media_type, "data": piece.data}}
    source: dict[str, Json]
    if piece.text is not None:
        source = {"type": "text", "media_type": "text/plain", "data": piece.text}
    elif piece.data is not None:
        source = {"type": "base64", "media_type": piece.media_type, "data": piece.data}
    else:
        source = {"type": "url", "url": piece.url}
    return {"type": "document", "source": source, "title": piece.name}
