"""A hot standby of the database for reads that may be late, and how late it is.

Once a second the primary's position in its log is noted. The newest noted position that the replica has replayed says
how old what it shows is, at most. So a replica that has lost its primary ages, and one whose primary writes nothing
does not.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, TypeAlias, get_args

import asyncpg
import structlog

from app.core.errors import StoreUnavailable
from app.store.engine import Database

LOOK_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 3.0
"""How long a look may take. What is read of a replica that does not answer for so long is given up."""
NOTES_MAX: Final = 1_000

ReplicaState: TypeAlias = Literal["ready", "behind", "away", "other"]
"""`behind`: by more than is allowed. `other`: it answers, and is no standby of this database."""
STATES: Final[tuple[ReplicaState, ...]] = get_args(ReplicaState)

_POSITION: Final = """
SELECT ({position} - '0/0'::pg_lsn)::bigint AS position, system_identifier || '/' || current_database() AS identity
FROM pg_control_system()
"""
_PRIMARY: Final = _POSITION.format(position="pg_current_wal_flush_lsn()")
_REPLICA: Final = _POSITION.format(position="CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END")
_FAILURES: Final = (StoreUnavailable, TimeoutError, asyncpg.PostgresError)


class Replica:
    """The standby as `watch` finds it. `database` is its pool, with the walls of the primary's; `lost` is set while it
    does not answer."""

    def __init__(self, primary: Database, database: Database, behind_seconds_max: float) -> None:
        self.database = database
        self.lost = asyncio.Event()
        self.lost.set()
        self._primary = primary
        self._identity: str | None = None
        self._behind_max = behind_seconds_max
        self._notes: deque[tuple[float, int]] = deque()
        """When the primary was where: the newest that the replica has replayed, and all behind it."""
        self._replayed = -1
        self._found: ReplicaState = "away"

    @property
    def state(self) -> ReplicaState:
        """What it is good for now."""
        behind = self.behind()
        if self._found == "ready" and (behind is None or behind > self._behind_max):
            return "behind"
        return self._found

    def behind(self) -> float | None:
        """How old what it shows is, in seconds, at most; None where that is not known."""
        if self._found != "ready" or not self._notes or self._notes[0][1] > self._replayed:
            return None
        return time.monotonic() - self._notes[0][0]

    async def watch(self, told: Callable[["Replica"], None]) -> None:
        """Look once a second, and tell of each look. Endless."""
        said: ReplicaState | None = None
        while True:
            await self._note()
            self._found = await self._look()
            (self.lost.set if self._found == "away" else self.lost.clear)()
            if self.state != said:
                said = self.state
                log = structlog.get_logger()
                (log.info if said == "ready" else log.warning)("replica", state=said)
            told(self)
            await asyncio.sleep(LOOK_SECONDS)

    async def _note(self) -> None:
        """Note where the primary is; while it does not say so, the replica ages."""
        now = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                row = await self._primary.fetchrow(_PRIMARY)
        except _FAILURES:
            return
        if row is not None:
            self._identity = row["identity"]
            self._notes.append((now, row["position"]))
        if len(self._notes) > NOTES_MAX:  # every other one: it is said to be later than it is, and never less
            self._notes = deque([self._notes[0], *list(self._notes)[1::2]])

    async def _look(self) -> ReplicaState:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                row = await self.database.fetchrow(_REPLICA)
        except _FAILURES:
            return "away"
        if row is None or row["position"] is None or row["identity"] != self._identity:
            return "other"
        self._replayed = row["position"]
        while len(self._notes) > 1 and self._notes[1][1] <= self._replayed:
            self._notes.popleft()
        return "ready"
