"""Reads of the past, which may be slightly stale: a replica serves them if there is one, so that agents do not wait.

The primary serves reads that the replica cannot, but only a few at a time, so that agents are not slowed down either.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol, Self, TypeAlias, TypeVar

import asyncpg

from app.core.errors import NotFound, NotReproducible, StoreUnavailable
from app.store.engine import Database
from app.store.replica import Replica

WAIT_SECONDS: Final = 10.0
"""Seconds for which a read waits for its turn at the primary."""

TOO_SLOW: Final = (TimeoutError, asyncpg.QueryCanceledError)
"""Errors of a statement that took too long."""

ReadOutcome: TypeAlias = Literal["replica", "primary_asked", "primary_missing", "primary_away", "refused"]
"""The primary answers because the caller asked for it, because the replica lacks the data, or because it is
unavailable, too far behind, or failed; `refused`: neither answered."""


class ReadsPast(Protocol):
    """A service that reads the past."""

    def on(self, database: Database) -> Self:
        """Return the service on another database; it still reads policies from its own, which has every version."""


Service = TypeVar("Service", bound=ReadsPast)
Answer = TypeVar("Answer")


class _ReplicaLost(Exception):
    """The replica became unavailable during a read."""


class ReplicaReads:
    """Such reads, of the primary or the replica. `primary_reads_max` is the number of concurrent reads that the primary
    serves if there is a replica."""

    def __init__(
        self,
        replica: Replica | None = None,
        primary_reads_max: int = 1,
        on_answer: Callable[[ReadOutcome], None] = lambda _: None,
    ) -> None:
        self.replica = replica
        self._on_answer = on_answer
        self._turns = asyncio.Semaphore(primary_reads_max)

    async def read(
        self, primary: Service, operation: Callable[[Service], Awaitable[Answer]], *, newest: bool
    ) -> tuple[Answer, float | None]:
        """Return the result of a service on the primary and its maximum age in seconds, None if it is the primary's.

        `newest`: read from the primary. Raises the service's errors, or StoreUnavailable.
        """
        if self.replica is None:
            return await operation(primary), None
        why: ReadOutcome = "primary_asked"
        if not newest:
            why, behind = "primary_away", self.replica.behind()
            if self.replica.state == "ready" and behind is not None:
                try:
                    answer = await self._read_replica(operation(primary.on(self.replica.database)), self.replica)
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
                    return answer, behind
        answer = await self._read_primary(operation, primary)
        self._on_answer(why)
        return answer, None

    async def _read_replica(self, reading: Awaitable[Answer], replica: Replica) -> Answer:
        """Await a read until the replica becomes unavailable: a machine that is gone may never report it."""
        task, lost = asyncio.ensure_future(reading), asyncio.ensure_future(replica.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _ReplicaLost
            return task.result()
        finally:
            lost.cancel()
            task.cancel()

    async def _read_primary(self, asked: Callable[[Service], Awaitable[Answer]], primary: Service) -> Answer:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            self._on_answer("refused")
            raise StoreUnavailable("the replica cannot answer this, and the primary has too many such reads") from None
        try:
            return await asked(primary)
        finally:
            self._turns.release()
