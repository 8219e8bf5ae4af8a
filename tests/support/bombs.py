"""Compressed bodies that unpack to a thousand times their size, and the memory they take."""

import zlib
from pathlib import Path
from typing import Final

BOMB_BYTES: Final = 1_000_000_000
_BLOCK: Final = b"x" * 16_000_000


def bomb(size: int = BOMB_BYTES) -> bytes:
    """Return a gzip stream without its trailer that unpacks to `size` bytes."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(b'{"error": {"message": "') + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(_BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (size // len(_BLOCK))


class Memory:
    """The growth of this process's memory since the object was created."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak to the present size
        self._before = _resident("VmRSS")

    def growth(self) -> int:
        """Return the bytes by which the peak exceeds the initial size."""
        return _resident("VmHWM") - self._before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
