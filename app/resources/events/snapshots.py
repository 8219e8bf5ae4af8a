"""Snapshots of sessions: an append is laid out from one, and applies only if the session has not changed.

A snapshot is not dropped when its session changes, which may happen in any process. An append that does not apply reads
it again.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.log.turns import FIRST, TurnState
from app.services.counting import Counting
from app.store import sessions
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.sessions import SessionRow

SESSIONS_REMEMBERED_MAX: Final = 50_000


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

    async def get(self, tenant_id: UUID, session_id: UUID) -> SessionSnapshot:
        """Return the snapshot of a session, or that of a new session."""
        known = self._known.get(session_id)
        if known is not None:
            return known
        row = await sessions.find(self._database, session_id, tenant_id)
        if row is None:
            return SessionSnapshot(SessionLog(session_id, ()), None, self._counting.estimator(None).name)
        read = SessionSnapshot.of(row)
        self.put(session_id, read)
        return read

    def put(self, session_id: UUID, seen: SessionSnapshot) -> None:
        """Keep a snapshot for the session's next append."""
        self._known[session_id] = seen
        self._known.move_to_end(session_id)
        if len(self._known) > SESSIONS_REMEMBERED_MAX:
            self._known.popitem(last=False)
