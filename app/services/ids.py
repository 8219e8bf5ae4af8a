"""Ids of what the server makes."""

import os
import time
from uuid import UUID


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562): what is made later stands behind what was made before in the index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    return UUID(int=value & ~(0x3 << 62) | (0x2 << 62))
