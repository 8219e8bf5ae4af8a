"""Snapshots of sessions, and waiting lists for them: all that a process remembers between two appends.

An append is laid out from a snapshot, and applies only if the session has not changed. A snapshot is not dropped when
its session changes, which may happen in any process. An append that does not apply reads it again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.errors import StoreUnavailable
from app.core.log.placement import FIRST, TurnState
from app.resources.counting import Counting
from app.store import sessions
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.sessions import SessionRow

SESSIONS_REMEMBERED_MAX: Final = 50_000
WAIT_SECONDS: Final = 30.0
WAITING_MAX: Final = 256
"""Most tasks that wait for one session; further ones are refused."""


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """The last known state of a session: enough to count a batch and to lay it out before the session's row is read."""

    log: SessionLog
    model: str | None
    estimator: str
    policy: tuple[str, int] = ("default", 1)
    turn: TurnState = FIRST

    @classmethod
    def of(cls, row: SessionRow) -> "SessionSnapshot":
        """Return the snapshot of a session's row."""
        return cls(row.log, row.model, row.estimator, row.policy, row.state.turn)


class SessionSnapshots:
    """Keeps snapshots of the most recently used sessions."""

    def __init__(self, database: Database, counting: Counting) -> None:
        self._database = database
        self._counting = counting
        self._known: OrderedDict[UUID, SessionSnapshot] = OrderedDict()

    async def get(self, ref: SessionRef) -> SessionSnapshot:
        """Return the snapshot of a session, or that of a new session."""
        known = self._known.get(ref.session_id)
        if known is not None:
            return known
        row = await sessions.find(self._database, ref)
        if row is None:
            return SessionSnapshot(SessionLog(ref.session_id, ()), None, self._counting.estimator(None).name)
        read = SessionSnapshot.of(row)
        self.put(ref.session_id, read)
        return read

    def put(self, session_id: UUID, seen: SessionSnapshot) -> None:
        """Keep a snapshot for the session's next append."""
        self._known[session_id] = seen
        self._known.move_to_end(session_id)
        if len(self._known) > SESSIONS_REMEMBERED_MAX:
            self._known.popitem(last=False)


class WaitingLists:
    """Lets one task of this process through at a time for each session, in the order of arrival.

    Correctness relies on the lock in the database; this list keeps waiting tasks from holding all connections.
    """

    def __init__(self) -> None:
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._waiting: dict[UUID, int] = {}

    @asynccontextmanager
    async def turn(self, session_id: UUID) -> AsyncIterator[None]:
        """Wait for the session's turn, and hold it while the block lasts.

        Raises StoreUnavailable if too many tasks wait already, or after WAIT_SECONDS.
        """
        waiting = self._waiting.get(session_id, 0)
        if waiting >= WAITING_MAX:
            raise StoreUnavailable(f"{waiting} requests wait for this session already")
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        self._waiting[session_id] = waiting + 1
        try:
            try:
                await (asyncio.wait_for(lock.acquire(), WAIT_SECONDS) if waiting else lock.acquire())
            except TimeoutError:
                raise StoreUnavailable("other requests have held this session for too long") from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._waiting[session_id] -= 1
            if not self._waiting[session_id]:
                del self._waiting[session_id], self._locks[session_id]
