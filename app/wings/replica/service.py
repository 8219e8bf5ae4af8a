"""Reads of the past, which may be slightly stale: a replica serves them if there is one, so that agents do not wait.

The primary serves reads that the replica cannot, but only a few at a time, so that agents are not slowed down either.

Once a second the primary's position in its write-ahead log is recorded. The newest recorded position that the replica
has replayed bounds the age of the data it returns. So a replica that has lost its primary ages, and one whose primary
writes nothing does not.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias, TypeVar

import asyncpg
import structlog

from app.core.errors import NotFound, NotReproducible, StoreUnavailable
from app.http.operation import PastReader
from app.store.engine import Database, reading_from

LOOK_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 3.0
"""Time limit of a check. Reads from a replica that does not answer for this long are given up."""
POSITIONS_MAX: Final = 1_000
WAIT_SECONDS: Final = 10.0
"""Seconds for which a read waits for one of the primary's slots."""

TOO_MANY: Final = "the primary already serves as many reads of the past as it may; try again later"
TOO_SLOW: Final = (TimeoutError, asyncpg.QueryCanceledError)
"""Errors of a statement that took too long."""

ReplicaState: TypeAlias = Literal["ready", "behind", "away", "other"]
"""`behind`: it lags too far. `away`: it does not answer. `other`: it is not known to be a standby of this database."""

ReadOutcome: TypeAlias = Literal["replica", "primary_asked", "primary_missing", "primary_away", "refused"]
"""`primary_…`: the primary served the read, because the caller asked for it (`asked`), the replica lacked the data
(`missing`), or the replica was unavailable, too far behind, or failed (`away`). `refused`: neither served it."""

Answer = TypeVar("Answer")

_POSITION: Final = """
SELECT ({position} - '0/0'::pg_lsn)::bigint AS position, system_identifier || '/' || current_database() AS identity
FROM pg_control_system()
"""
_PRIMARY: Final = _POSITION.format(position="pg_current_wal_flush_lsn()")
_REPLICA: Final = _POSITION.format(position="CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END")
_FAILURES: Final = (StoreUnavailable, TimeoutError, asyncpg.PostgresError)


class Replica:
    """The standby as `watch` finds it. `database` is a pool of connections to it, where row-level security applies as
    on the primary; `lost` is set while it does not answer."""

    def __init__(self, primary: Database, database: Database, lag_seconds_max: float) -> None:
        self.database = database
        self.lost = asyncio.Event()
        self.lost.set()
        self._primary = primary
        self._identity: str | None = None
        self._lag_max = lag_seconds_max
        self._positions: deque[tuple[float, int]] = deque()
        """Times and positions of the primary: the newest that the replica has replayed, and all later ones."""
        self._replayed = -1
        self._last_state: ReplicaState = "away"

    @property
    def state(self) -> ReplicaState:
        """The state that the last check found; `behind` also if the lag is unknown."""
        lag = self.lag()
        if self._last_state == "ready" and (lag is None or lag > self._lag_max):
            return "behind"
        return self._last_state

    def lag(self) -> float | None:
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
            on_check(self.state, self.lag())
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
        if len(self._positions) > POSITIONS_MAX:  # without every other one, the lag can only be overstated
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


class _ReplicaLost(Exception):
    """The replica became unavailable during a read."""


class ReplicaReader(PastReader):
    """Reads from the replica or the primary, which serves at most `primary_reads_max` at a time."""

    def __init__(self, replica: Replica, primary_reads_max: int, on_answer: Callable[[ReadOutcome], None]) -> None:
        self.replica = replica
        self._on_answer = on_answer
        self._primary_slots = asyncio.Semaphore(primary_reads_max)

    @property
    def replica_state(self) -> str:
        """The state of the replica."""
        return self.replica.state

    async def aclose(self) -> None:
        """Close the connections to the replica."""
        await self.replica.database.close()

    async def read(self, operation: Callable[[], Awaitable[Answer]], *, newest: bool) -> tuple[Answer, float | None]:
        """Return the result of an operation and its maximum age in seconds, None if it is the primary's.

        `newest`: read from the primary. Raises the operation's errors, or StoreUnavailable.
        """
        why: ReadOutcome = "primary_asked"
        if not newest:
            why, lag = "primary_away", self.replica.lag()
            if self.replica.state == "ready" and lag is not None:
                try:
                    answer = await self._read_replica(operation)
                except (NotFound, NotReproducible):  # it may be replicated in part only
                    why = "primary_missing"
                except StoreUnavailable as error:
                    if isinstance(error.__cause__, TOO_SLOW):  # the primary would be as slow, and agents would notice
                        self._on_answer("refused")
                        raise
                except (asyncpg.PostgresError, _ReplicaLost):  # such as a column that the replica does not have yet
                    pass
                else:
                    self._on_answer("replica")
                    return answer, lag
        answer = await self._read_primary(operation)
        self._on_answer(why)
        return answer, None

    async def _read_replica(self, operation: Callable[[], Awaitable[Answer]]) -> Answer:
        """Await a read until the replica becomes unavailable: a machine that is gone may never report it."""
        with reading_from(self.replica.database):
            task = asyncio.ensure_future(operation())
        lost = asyncio.ensure_future(self.replica.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _ReplicaLost
            return task.result()
        finally:
            lost.cancel()
            task.cancel()

    async def _read_primary(self, operation: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._primary_slots.acquire()
        except TimeoutError:
            self._on_answer("refused")
            raise StoreUnavailable(TOO_MANY) from None
        try:
            return await operation()
        finally:
            self._primary_slots.release()
