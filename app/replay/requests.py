"""A rendered request, or a whole log, as the blocks that a provider's cache sees."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.events import Json, canonical_json
from app.recordings.recording import Object
from app.replay.bill import BilledBlock, BilledRequest

_DATA_CHARS: Final = 4096
"""The most characters that count for embedded binary data when an estimate is divided: it is billed by its pixels."""


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    weight: int
    joins: bool = False
    breakpoint: bool = False


def rendered(request: Object, estimate: int, at: float) -> BilledRequest:
    """Divide a request of any format into blocks.

    The server estimates only the whole request. So each block gets a share of `estimate` by the length of its JSON; the
    shares sum to it exactly.
    """
    pieces = tuple(_pieces(request))
    total = sum(piece.weight for piece in pieces)
    blocks = []
    behind = done = 0
    for piece in pieces:
        behind += piece.weight
        upto = estimate * behind // total
        digest = hashlib.sha256(piece.text.encode("utf-8", "surrogatepass")).hexdigest()
        blocks.append(BilledBlock(digest, upto - done, piece.joins))
        done = upto
    marks = tuple(number for number, piece in enumerate(pieces, start=1) if piece.breakpoint)
    return BilledRequest(tuple(blocks), marks, at)


@dataclass(frozen=True, slots=True)
class Logged:
    """An event with its tokens as counted at append."""

    seq: int
    type: str
    tokens: int


def everything(log: Sequence[Logged], scale: float, previous: int, at: float) -> BilledRequest:
    """The request of a client that never leaves anything out, whatever the window: one block for each event.

    `scale` converts tokens counted at append into tokens of a rendered request. `previous` is the number of events in
    the request before. Breakpoints are where a careful client puts them: behind the prefix, behind `previous` events,
    and at the end.
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
    """Tools, then the system prompt, then the conversation: the order in which providers cache."""
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
    """A message of role and content is one block for each part; one with other fields (calls, ids) is one block."""
    if set(message) == {"role", "content"}:
        yield from _parts(message["role"], message["content"])
    else:
        yield _piece(message.get("role", ""), message)


def _parts(role: str, value: Json) -> Iterator[_Piece]:
    if value is None:
        return
    # To the provider a string is the same as one text part, which it becomes when it gets a breakpoint.
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
    """Characters of embedded binary data beyond what counts."""
    if isinstance(value, str):
        return max(0, len(value) - _DATA_CHARS) if value.startswith("data:") else 0
    if isinstance(value, dict):
        if value.get("type") == "base64" and isinstance(value.get("data"), str):
            return max(0, len(value["data"]) - _DATA_CHARS)
        return _total(value.values())
    return _total(value) if isinstance(value, list) else 0


def _total(values: Iterable[Json]) -> int:
    return sum(_surplus(value) for value in values)
