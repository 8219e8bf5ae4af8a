"""Bodies that unpack to a thousand times their size."""

import zlib
from typing import Final

BOMB_BYTES: Final = 1_000_000_000
_BLOCK: Final = b"x" * 16_000_000


def bomb(size: int = BOMB_BYTES) -> bytes:
    """Gzip without its last bytes, a thousandth of what it unpacks to."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(b'{"error": {"message": "') + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(_BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (size // len(_BLOCK))
