"""Ids that the server makes, and the ids that name a session."""

import math
import os
import time
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from app.core.lexicon.times import to_seconds
from app.core.log.segments import row_name

SESSION_REFS_KEPT: Final = 10_000
CLOCKS_APART: Final = timedelta(hours=1)
"""Maximum difference between the clocks of processes and of the database."""


class SessionRef(NamedTuple):
    """The key of a session's row (each line has one) and its tenant's id. The fields are named like the columns."""

    session_id: UUID
    tenant_id: UUID


@lru_cache(maxsize=SESSION_REFS_KEPT)
def session_ref(tenant_id: UUID, external_id: str) -> SessionRef:
    """Return the ids of a session, or of one of its lines; its key is derived from the external id."""
    return SessionRef(uuid5(tenant_id, row_name(external_id)), tenant_id)


def session_key(tenant_id: UUID, external_id: str) -> UUID:
    """Return the key of the row of a session, or of one of its lines."""
    return session_ref(tenant_id, external_id).session_id


def new_id() -> UUID:
    """Return a UUIDv7 (RFC 9562): later ids sort after earlier ones in an index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    return UUID(int=value & ~(0x3 << 62) | (0x2 << 62))


def overflow_run(call_id: UUID) -> UUID:
    """Return the id of the compaction run for a call refused as too long; its report and its retry get the same id."""
    return uuid5(call_id, "overflow")


def first_id(moment: datetime) -> UUID:
    """Return an id below every id made at or after `moment`, by any clock within CLOCKS_APART of ours."""
    return _id_at(to_seconds(moment) - CLOCKS_APART.total_seconds())


def last_id(moment: datetime) -> UUID:
    """Return an id above every id made before `moment`, by any such clock."""
    return _id_at(to_seconds(moment) + CLOCKS_APART.total_seconds())


def _id_at(seconds: float) -> UUID:
    return UUID(int=min(max(0, math.ceil(seconds * 1000)), 2**48 - 1) << 80)
