"""A long text in pieces, for what is looked for by a pattern: while a pattern runs, no other thread does."""

from collections.abc import Iterator
from typing import Final

PIECE_CHARS: Final = 65_536
"""Some tens of milliseconds for the slowest pattern here."""
_SPACES: Final = ("\n", " ", "\t")


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of at most PIECE_CHARS: each ends behind a line, else behind a space if there is one."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        most = start + PIECE_CHARS
        end = next((at + 1 for space in _SPACES if (at := text.rfind(space, start, most)) >= 0), most)
        yield text[start:end]
        start = end
    yield text[start:]
