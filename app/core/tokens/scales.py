"""Tokenizers, scales from one's count to another's, and the tokens of images."""

import base64
import binascii
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from types import MappingProxyType
from typing import Final, Literal, Protocol

HEADER_CHARS: Final = 87_384
"""Base64 characters read for an image's size: 64 KiB, since a JPEG's frame header comes after its metadata."""


class Tokenizer(Protocol):
    """An exact tokenizer."""

    @property
    def name(self) -> str:
        """The encoding's name."""

    def count(self, text: str) -> int:
        """Return the tokens of `text`; special tokens in it count as ordinary text."""

    @property
    def in_parts(self) -> "Tokenizer":
        """The tokenizer with the counts of a text's parts cached, for texts that have most of them in common."""


@dataclass(frozen=True, slots=True)
class ImageRule:
    """One vendor's rule. An image of unknown size counts as the largest image."""

    kind: Literal["area", "tiles", "patches"]
    base: int = 0
    tile: int = 0
    factor: float = 1.0

    def tokens(self, size: tuple[int, int] | None, detail: str | None = None) -> int:
        """Return the tokens of an image of `size` (width, height in pixels)."""
        if self.kind == "area":
            return _area(size)
        if self.kind == "tiles":
            return self.base if detail == "low" else self.base + self.tile * _tiles(size)
        return math.ceil(self.factor * _patches(size))


AREA: Final = ImageRule("area")


def _area(size: tuple[int, int] | None) -> int:
    if size is None:
        return 1600
    width, height = _within(size, 1568)
    return min(1600, max(1, math.ceil(width * height / 750)))


def _tiles(size: tuple[int, int] | None) -> int:
    if size is None:
        return 8
    width, height = _within(size, 2048)
    shrink = min(1.0, 768 / max(1.0, min(width, height)))
    return math.ceil(width * shrink / 512) * math.ceil(height * shrink / 512)


def _patches(size: tuple[int, int] | None) -> int:
    if size is None:
        return 1536
    return min(1536, math.ceil(size[0] / 32) * math.ceil(size[1] / 32))


def _within(size: tuple[int, int], edge: int) -> tuple[float, float]:
    scale = min(1.0, edge / max(1, *size))
    return size[0] * scale, size[1] * scale


def dimensions(data: str) -> tuple[int, int] | None:
    """Return the width and height of a base64 PNG, GIF, JPEG or WebP, from its header; None if unreadable."""
    head = data[:HEADER_CHARS]
    try:
        raw = base64.b64decode(head[: len(head) // 4 * 4])
    except (binascii.Error, ValueError):
        return None
    size = _png(raw) or _gif(raw) or _webp(raw) or _jpeg(raw)
    return size if size and size[0] > 0 and size[1] > 0 else None


def _png(raw: bytes) -> tuple[int, int] | None:
    if raw[:8] != b"\x89PNG\r\n\x1a\n" or len(raw) < 24:
        return None
    return int.from_bytes(raw[16:20]), int.from_bytes(raw[20:24])


def _gif(raw: bytes) -> tuple[int, int] | None:
    if raw[:4] != b"GIF8" or len(raw) < 10:
        return None
    return int.from_bytes(raw[6:8], "little"), int.from_bytes(raw[8:10], "little")


def _webp(raw: bytes) -> tuple[int, int] | None:
    if raw[:4] != b"RIFF" or raw[8:12] != b"WEBP" or len(raw) < 30:
        return None
    if raw[12:16] == b"VP8X":
        return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
    if raw[12:16] == b"VP8L":
        bits = int.from_bytes(raw[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(raw[26:28], "little") & 0x3FFF, int.from_bytes(raw[28:30], "little") & 0x3FFF


def _jpeg(raw: bytes) -> tuple[int, int] | None:
    if raw[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 < len(raw) and raw[at] == 0xFF:
        marker, length = raw[at + 1], int.from_bytes(raw[at + 2 : at + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header, not a table
            return int.from_bytes(raw[at + 7 : at + 9]), int.from_bytes(raw[at + 5 : at + 7])
        at += 2 + max(2, length)
    return None


MARGIN: Final = 0.1
"""The share by which a scaled count may be below the true one."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The weights of a scaled count: `token` for each token of the other tokenizer, the rest for kinds of characters.

    `kinds` are the weights of _KINDS, in that order. `foreign` is for small letters in a text with accented ones, at
    most FOREIGN_LETTERS for each of these: other languages take more tokens for the same letters than English.
    `same_letter` and `same_other` are for characters in long runs of one character, for which the other tokenizer has
    special tokens.
    """

    token: float
    kinds: tuple[float, ...]
    foreign: float
    same_letter: float
    same_other: float


# The first bytes of the UTF-8 of each kind of character, and the kind's weights in claude-3 and claude-4.7.
_WEIGHTS: Final[Sequence[tuple[Iterable[int], float, float]]] = (
    (range(0x41, 0x5B), 0.15, 0.65),  # capital letters
    (range(0x61, 0x7B), 0.025, 0.19),  # small letters
    (range(0x30, 0x3A), 0.01, 0.02),  # digits
    (b" \t\n\r", 0.01, 0.02),
    ([byte for byte in range(0x80) if byte not in b" \t\n\r" and not chr(byte).isalnum()], 0.12, 0.27),  # signs
    ([0xC3], 0.4, 0.4),  # Latin-1's letters
    (range(0xC4, 0xCE), 0.4, 0.4),  # all other Latin and phonetic letters
    ([0xCE, 0xCF], 0.4, 0.45),  # Greek
    (range(0xD0, 0xD4), 0.2, 0.2),  # Cyrillic
    (range(0xD4, 0xE0), 0.45, 0.5),  # Armenian to Thaana, and Nko
    ([0xE0, 0xE1], 0.52, 0.55),  # the scripts of India, South-East Asia and their neighbours
    ([0xC2, 0xE2], 0.3, 0.4),  # punctuation and signs
    (range(0xE3, 0xEA), 0.22, 0.31),  # kana up to the ideographs
    (range(0xEA, 0xF0), 0.72, 0.8),  # Hangul, with all that is not listed elsewhere
    (range(0xF0, 0xF8), 0.15, 0.46),  # emoji and rare ideographs
)
_KINDS: Final = tuple(bytes(kind) for kind, _, _ in _WEIGHTS)
SCALES: Final[Mapping[str, Scale]] = MappingProxyType(
    {
        "claude-3": Scale(1.18, tuple(row[1] for row in _WEIGHTS), foreign=0.16, same_letter=0.36, same_other=0.065),
        "claude-4.7": Scale(1.05, tuple(row[2] for row in _WEIGHTS), foreign=0.15, same_letter=1.0, same_other=0.17),
    }
)
_ASCII_KINDS: Final = 5
_ASCII: Final = bytes(range(0x80))
FOREIGN_LETTERS: Final = 100
RUN_BYTES: Final = 16
_RUN: Final = bytes(RUN_BYTES - 1)
_EQUAL: Final = re.compile(rb"\x00{%d,}" % (RUN_BYTES - 1))
_LETTERS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def scaled(tokens: int, text: str, scale: Scale) -> float:
    """Return a text's count by another tokenizer, `tokens`, scaled to this scale's tokenizer."""
    raw = text.encode("utf-8", "replace")
    total = scale.token * tokens
    rest = []
    end = 0
    for start, stop in _runs(raw):
        total += (stop - start) * (scale.same_letter if raw[start] in _LETTERS else scale.same_other)
        rest.append(raw[end:start])
        end = stop
    raw = b"".join((*rest, raw[end:])) if end else raw
    counts = [len(raw) - len(raw.translate(None, kind)) for kind in _KINDS[:_ASCII_KINDS]]
    accented = 0
    if not raw.isascii():
        others = raw.translate(None, _ASCII)
        counts += [len(others) - len(others.translate(None, kind)) for kind in _KINDS[_ASCII_KINDS:]]
        accented = counts[_ASCII_KINDS] + counts[_ASCII_KINDS + 1]
    total += sum(map(mul, scale.kinds, counts), 0.0)
    return total + scale.foreign * min(counts[1], FOREIGN_LETTERS * accented)


def _runs(raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield the runs of RUN_BYTES or more equal bytes, each as its start and end."""
    if len(raw) < RUN_BYTES:
        return
    # XOR of the whole text, as one number, with itself shifted by a byte: a byte equal to the one before it becomes 0.
    # This is many times as fast as comparing byte by byte.
    number = int.from_bytes(raw)
    changes = (number ^ number >> 8).to_bytes(len(raw))
    if _RUN not in changes:  # true of nearly all texts, and found in a tenth of the time
        return
    for found in _EQUAL.finditer(changes):
        yield max(0, found.start() - 1), found.end()
