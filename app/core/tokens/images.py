"""Tokens of an image, by the vendors' published rules.

Anthropic (Vision guide): width * height / 750 after scaling the long edge to 1568 pixels; about 1,600 at most.
OpenAI (Images and vision guide): tile models scale the image into 2048 x 2048, then its short side to 768, and bill
`base` plus `tile` for each 512-pixel square (`base` alone at low detail); patch models bill 32-pixel patches, at most
1,536, times a factor.
"""

import base64
import binascii
import math
from dataclasses import dataclass
from typing import Final, Literal

HEADER_CHARS: Final = 87_384
"""Base64 characters read for an image's size: 64 KiB, since a JPEG's frame header comes after its metadata."""


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
