"""Ids of what the server makes."""

import math
import os
import time
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

CLOCKS_APART: Final = timedelta(hours=1)
"""By how much the clocks of processes and of the database may differ."""


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562): what is made later stands behind what was made before in the index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    return UUID(int=value & ~(0x3 << 62) | (0x2 << 62))


def first_id(moment: datetime) -> UUID:
    """An id below all that are made from a moment on, by any clock that is less than CLOCKS_APART from ours."""
    return _at(moment.timestamp() - CLOCKS_APART.total_seconds())


def last_id(moment: datetime) -> UUID:
    """An id above all that were made before a moment, by any such clock."""
    return _at(moment.timestamp() + CLOCKS_APART.total_seconds())


def _at(seconds: float) -> UUID:
    return UUID(int=min(max(0, math.ceil(seconds * 1000)), 2**48 - 1) << 80)
