"""Rendered requests, and whole logs, as the blocks of a provider's cache."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.events import Json, canonical_json
from palimpsest_tools.recordings.recording import Object
from palimpsest_tools.replay.bill import BilledBlock, BilledRequest

_DATA_CHARS: Final = 4096
"""Maximum weight in characters of embedded binary data when an estimate is divided: it is billed by its pixels."""


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    weight: int
    joins: bool = False
    breakpoint: bool = False


def rendered(request: Object, estimate: int, at: float) -> BilledRequest:
    """Divide a request of any format into blocks.

    The server estimates only the whole request, so each block gets a share of `estimate` by the length of its JSON. The
    shares add up to it exactly.
    """
    pieces = tuple(_pieces(request))
    total = sum(piece.weight for piece in pieces)
    blocks = []
    weight = counted = 0
    for piece in pieces:
        weight += piece.weight
        upto = estimate * weight // total
        digest = hashlib.sha256(piece.text.encode("utf-8", "surrogatepass")).hexdigest()
        blocks.append(BilledBlock(digest, upto - counted, piece.joins))
        counted = upto
    marks = tuple(number for number, piece in enumerate(pieces, start=1) if piece.breakpoint)
    return BilledRequest(tuple(blocks), marks, at)


@dataclass(frozen=True, slots=True)
class Logged:
    """A logged event with its tokens as counted at append."""

    seq: int
    type: str
    tokens: int


def everything(log: Sequence[Logged], scale: float, previous: int, at: float) -> BilledRequest:
    """Return the request of a client that never leaves anything out, whatever the window: one block for each event.

    `scale` converts tokens counted at append into tokens of a rendered request. `previous` is the number of events in
    the request before. Breakpoints are where a careful client sets them: after the prefix, after `previous` events, and
    at the end.
    """
    prefix = next((n for n, event in enumerate(log) if event.type not in ("system.prompt", "tools")), len(log))
    types_before = ("", *(event.type for event in log))
    blocks = tuple(
        BilledBlock(str(event.seq), round(event.tokens * scale), joins=before == event.type == "tool.call")
        for before, event in zip(types_before, log, strict=False)
    )
    marks = sorted({prefix, previous, len(log)} - {0})
    return BilledRequest(blocks, tuple(marks), at)


def _pieces(request: Object) -> Iterator[_Piece]:
    """Yield the tools, then the system prompt, then the conversation: the order in which providers cache."""
    yield from (_piece("tools", tool) for tool in request.get("tools") or ())
    for key in ("system", "instructions"):
        yield from _parts(key, request.get(key))
    for content in (request.get("systemInstruction") or {}, *(request.get("contents") or ())):
        yield from (_piece(content.get("role", "system"), part) for part in content.get("parts", ()))
    for message in request.get("messages") or ():
        yield from _message(message)
    yield from (_piece("input", item) for item in request.get("input") or ())
    yield from (_piece("blocks", block) for block in request.get("blocks") or ())


def _message(message: Object) -> Iterator[_Piece]:
    """Yield a block for each part of a message with only role and content, else (calls, ids) one for the message."""
    if set(message) == {"role", "content"}:
        yield from _parts(message["role"], message["content"])
    else:
        yield _piece(message.get("role", ""), message)


def _parts(role: str, value: Json) -> Iterator[_Piece]:
    if value is None:
        return
    # A string is the same to the provider as one text part, which it becomes when it gets a breakpoint.
    before = ""
    for part in [{"type": "text", "text": value}] if isinstance(value, str) else value:
        yield _piece(role, part, joins=before == part.get("type") == "tool_use")
        before = part.get("type", "")


def _piece(role: str, value: Json, *, joins: bool = False) -> _Piece:
    marked = isinstance(value, dict) and "cache_control" in value
    bare = {key: item for key, item in value.items() if key != "cache_control"} if marked else value
    text = canonical_json([role, bare])
    return _Piece(text, max(1, len(text) - _surplus(bare)), joins, marked)


def _surplus(value: Json) -> int:
    """Return the number of characters of embedded binary data that do not count."""
    if isinstance(value, str):
        return max(0, len(value) - _DATA_CHARS) if value.startswith("data:") else 0
    if isinstance(value, dict):
        if value.get("type") == "base64" and isinstance(value.get("data"), str):
            return max(0, len(value["data"]) - _DATA_CHARS)
        return _total(value.values())
    return _total(value) if isinstance(value, list) else 0


def _total(values: Iterable[Json]) -> int:
    return sum(_surplus(value) for value in values)
