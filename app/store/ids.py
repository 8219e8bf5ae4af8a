"""Ids that the server makes."""

import math
import os
import time
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid5

from app.core.lexicon.times import to_seconds

CLOCKS_APART: Final = timedelta(hours=1)
"""Maximum difference between the clocks of processes and of the database."""


def new_id() -> UUID:
    """Return a UUIDv7 (RFC 9562): later ids sort after earlier ones in an index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    return UUID(int=value & ~(0x3 << 62) | (0x2 << 62))


def overflow_run(call_id: UUID) -> UUID:
    """Return the id of the compaction for a call that was refused as too long: one for its report and its retry."""
    return uuid5(call_id, "overflow")


def first_id(moment: datetime) -> UUID:
    """Return an id below every id made at or after `moment`, by any clock within CLOCKS_APART of ours."""
    return _id_at(to_seconds(moment) - CLOCKS_APART.total_seconds())


def last_id(moment: datetime) -> UUID:
    """Return an id above every id made before `moment`, by any such clock."""
    return _id_at(to_seconds(moment) + CLOCKS_APART.total_seconds())


def _id_at(seconds: float) -> UUID:
    return UUID(int=min(max(0, math.ceil(seconds * 1000)), 2**48 - 1) << 80)
