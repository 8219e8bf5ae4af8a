"""A hot standby of the database for reads that may be out of date, and its lag.

Once a second the primary's position in its log is recorded. The newest recorded position that the replica has replayed
bounds the age of the data it returns. So a replica that has lost its primary ages, and one whose primary writes nothing
does not.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import asyncpg
import structlog

from app.core.errors import StoreUnavailable
from app.store.engine import Database

LOOK_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 3.0
"""Time limit of a check. Reads from a replica that does not answer for this long are given up."""
NOTES_MAX: Final = 1_000

ReplicaState: TypeAlias = Literal["ready", "behind", "away", "other"]
"""`behind`: it lags more than is allowed. `away`: it does not answer. `other`: it is no standby of this database."""

_POSITION: Final = """
SELECT ({position} - '0/0'::pg_lsn)::bigint AS position, system_identifier || '/' || current_database() AS identity
FROM pg_control_system()
"""
_PRIMARY: Final = _POSITION.format(position="pg_current_wal_flush_lsn()")
_REPLICA: Final = _POSITION.format(position="CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END")
_FAILURES: Final = (StoreUnavailable, TimeoutError, asyncpg.PostgresError)


class Replica:
    """The standby as `watch` finds it. `database` is its pool, with the primary's tenant isolation; `lost` is set while
    it does not answer."""

    def __init__(self, primary: Database, database: Database, behind_seconds_max: float) -> None:
        self.database = database
        self.lost = asyncio.Event()
        self.lost.set()
        self._primary = primary
        self._identity: str | None = None
        self._behind_max = behind_seconds_max
        self._positions: deque[tuple[float, int]] = deque()
        """Times and positions of the primary: the newest that the replica has replayed, and all later ones."""
        self._replayed = -1
        self._last_state: ReplicaState = "away"

    @property
    def state(self) -> ReplicaState:
        """The state that the last check found, or `behind` if the replica lags too far or by an unknown time."""
        behind = self.behind()
        if self._last_state == "ready" and (behind is None or behind > self._behind_max):
            return "behind"
        return self._last_state

    def behind(self) -> float | None:
        """Return the maximum age of the replica's data, in seconds; None if it is unknown."""
        if self._last_state != "ready" or not self._positions or self._positions[0][1] > self._replayed:
            return None
        return time.monotonic() - self._positions[0][0]

    async def watch(self, on_check: Callable[[str, float | None], None]) -> None:
        """Check the replica once a second, and call `on_check` with its state and lag after each check. Endless."""
        logged: ReplicaState | None = None
        while True:
            await self._record_position()
            self._last_state = await self._check()
            (self.lost.set if self._last_state == "away" else self.lost.clear)()
            if self.state != logged:
                logged = self.state
                log = structlog.get_logger()
                (log.info if logged == "ready" else log.warning)("replica", state=logged)
            on_check(self.state, self.behind())
            await asyncio.sleep(LOOK_SECONDS)

    async def _record_position(self) -> None:
        """Record the primary's position; while the primary does not return it, the replica ages."""
        now = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                row = await self._primary.fetchrow(_PRIMARY)
        except _FAILURES:
            return
        if row is not None:
            self._identity = row["identity"]
            self._positions.append((now, row["position"]))
        if len(self._positions) > NOTES_MAX:  # without every other one, the lag can only be overstated
            self._positions = deque([self._positions[0], *list(self._positions)[1::2]])

    async def _check(self) -> ReplicaState:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                row = await self.database.fetchrow(_REPLICA)
        except _FAILURES:
            return "away"
        if row is None or row["position"] is None or row["identity"] != self._identity:
            return "other"
        self._replayed = row["position"]
        while len(self._positions) > 1 and self._positions[1][1] <= self._replayed:
            self._positions.popleft()
        return "ready"
