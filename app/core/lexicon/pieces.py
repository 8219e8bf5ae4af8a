"""Division of long texts into pieces for pattern matching: while a pattern runs, it blocks all other threads."""

from collections.abc import Iterator
from typing import Final

PIECE_CHARS: Final = 65_536
"""The slowest pattern here takes some tens of milliseconds for this much."""
_SPACES: Final = ("\n", " ", "\t")


def pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most PIECE_CHARS, cut after a line break, else after a space, else anywhere."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        limit = start + PIECE_CHARS
        end = next((at + 1 for space in _SPACES if (at := text.rfind(space, start, limit)) >= 0), limit)
        yield text[start:end]
        start = end
    yield text[start:]
