"""Reading the raw log."""

from typing import Any
from uuid import UUID

from app.core.lexicon.times import time_text
from app.services.appends import event_id
from app.store import event_log, sessions
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.events import StoredEvent


class Reading:
    """Reads the log as it was written."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def events(self, tenant_id: UUID, external_id: str, after: int, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` events with seq > `after`, in order. Raises NotFound for an unknown session."""
        session_id = sessions.session_key(tenant_id, external_id)
        rows = await event_log.stored(self._database, SessionLog(session_id), after, limit)
        if not rows:
            await sessions.get(self._database, tenant_id, external_id)
        return [event_json(session_id, row) for row in rows]

    async def events_of_kind(
        self, tenant_id: UUID, external_id: str, after: int, limit: int, *, kind: str | None, author: str | None
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Return up to `limit` events of a type, an author or both, with seq > `after`, and the seq to continue after
        (None on the last page). A page may have fewer although more follow. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        rows = await event_log.by_type_or_author(self._database, session.log, after, limit + 1, kind, author)
        found = [event_json(session.session_id, row) for row in rows[:limit]]
        if len(rows) > limit:
            return found, rows[limit - 1].seq
        end = after + event_log.SCAN_MAX
        return found, end if end < session.state.head else None


def event_json(session_id: UUID, row: StoredEvent) -> dict[str, Any]:
    """Return an event as it is shown to readers of the log."""
    return {
        "seq": row.seq,
        **row.value,
        "id": row.event_id or event_id(session_id, row.seq),
        "turn": row.turn,
        "tokens": row.tokens,
        "created_at": time_text(row.created_at),
    }
