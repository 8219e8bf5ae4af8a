"""Redaction: the one change to the log. What an event said is destroyed, and all that was derived from it."""

from uuid import UUID

from app.core.errors import NotFound
from app.services.ids import new_id
from app.services.ingest import Ingest
from app.services.tails import Tails
from app.store import compactions, log, sessions, summaries, views
from app.store.engine import Database


class Redaction:
    """The redaction use case."""

    def __init__(self, database: Database, ingest: Ingest, tails: Tails) -> None:
        self._database = database
        self._ingest = ingest
        self._tails = tails

    async def redact(self, tenant_id: UUID, external_id: str, seq: int, key_id: UUID | None) -> None:
        """Leave a tombstone in the place of an event. Once more changes nothing. Raises NotFound.

        Every view is planned afresh by its next call, every summary over the event loses its text at once and is
        written anew by a worker.
        """
        session_id = sessions.session_key(tenant_id, external_id)
        async with self._database.transaction() as tx:
            if await log.lock(tx, session_id, tenant_id) is None:
                raise NotFound(f"there is no session {external_id!r}", session=external_id)
            done = await log.redact(tx, session_id, tenant_id, seq, key_id)
            if done is None:
                raise NotFound(f"session {external_id!r} has no event {seq}", session=external_id, seq=seq)
            if done:
                await views.unquote(tx, session_id, seq)
                holes = await summaries.invalidate(tx, session_id, seq)
                await views.plan_afresh(tx, session_id)
                if holes:
                    await compactions.schedule(tx, session_id, tenant_id, new_id(), "redaction")
        self._tails.forget(session_id)
        self._ingest.forget(session_id)
