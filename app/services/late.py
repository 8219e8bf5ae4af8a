"""Reads that look back and may be a moment late: a replica answers them where there is one, so that audits do not slow
agents down.

What the replica cannot answer the primary does, but only a few such reads at once: an audit must not become the agents'
problem because a replica is away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

import asyncpg

from app.core.errors import NotFound, NotReproducible, StoreUnavailable
from app.store.replica import Replica

WAIT_SECONDS: Final = 10.0
"""How long a read waits for its turn at the primary."""

TOO_SLOW: Final = (TimeoutError, asyncpg.QueryCanceledError)
"""What ends a statement that takes too long."""

AnsweredBy: TypeAlias = Literal["replica", "primary_asked", "primary_missing", "primary_away", "refused"]
"""The primary answers because it was asked to, because the replica does not have what was asked for, or because it is
away, late, or gave up; `refused`: nobody did."""

Service = TypeVar("Service")
Answer = TypeVar("Answer")


class _Lost(Exception):
    """The replica went away while it was read."""


class LateReads:
    """The services that read so, each for the primary and for the replica. `at_once`: how many reads the primary takes
    where there is a replica."""

    def __init__(
        self,
        primary: Sequence[object],
        replica: Replica | None = None,
        theirs: Sequence[object] = (),
        at_once: int = 1,
        told: Callable[[AnsweredBy], None] = lambda _: None,
    ) -> None:
        self.replica = replica
        self._primary = {type(one): one for one in primary}
        self._theirs = {type(one): one for one in theirs}
        self._told = told
        self._turns = asyncio.Semaphore(at_once)

    async def ask(
        self, kind: type[Service], asked: Callable[[Service], Awaitable[Answer]], *, newest: bool
    ) -> tuple[Answer, float | None]:
        """Return what a service of a class answers, and how many seconds old that is at most; None: the primary says.

        `newest`: the primary is to say. Raises as the service does, or StoreUnavailable.
        """
        primary: Service = self._primary[kind]  # type: ignore[assignment]  # by its class
        if self.replica is None:
            return await asked(primary), None
        why: AnsweredBy = "primary_asked"
        if not newest:
            why, behind = "primary_away", self.replica.behind()
            if self.replica.state == "ready" and behind is not None:
                theirs: Service = self._theirs[kind]  # type: ignore[assignment]  # by its class
                try:
                    answer = await self._unless_lost(asked(theirs), self.replica)
                except (NotFound, NotReproducible):  # what has come there in part may look so
                    why = "primary_missing"
                except StoreUnavailable as error:
                    if isinstance(error.__cause__, TOO_SLOW):  # as slow at the primary, where agents would notice
                        self._told("refused")
                        raise
                except (asyncpg.PostgresError, _Lost):  # a column that it does not have yet
                    pass
                else:
                    self._told("replica")
                    return answer, behind
        answer = await self._in_turn(asked, primary)
        self._told(why)
        return answer, None

    async def _unless_lost(self, reading: Awaitable[Answer], replica: Replica) -> Answer:
        """Read to the end, unless the replica goes away meanwhile: a machine that is gone may never say so."""
        task, lost = asyncio.ensure_future(reading), asyncio.ensure_future(replica.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _Lost
            return task.result()
        finally:
            lost.cancel()
            task.cancel()

    async def _in_turn(self, asked: Callable[[Service], Awaitable[Answer]], primary: Service) -> Answer:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            self._told("refused")
            raise StoreUnavailable("the replica cannot answer this, and the primary has enough such reads") from None
        try:
            return await asked(primary)
        finally:
            self._turns.release()
