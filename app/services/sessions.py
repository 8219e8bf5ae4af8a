"""Creating, reading and erasing sessions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from app.core.errors import InvalidRequest, NotFound
from app.core.events import Json, canonical_json
from app.services.counting import Counting
from app.services.ingest import Ingest
from app.services.policies import Policies
from app.store import sessions, views
from app.store.engine import Database
from app.store.sessions import SessionRow

METADATA_BYTES_MAX = 65_536


class Sessions:
    """The session use cases."""

    def __init__(self, database: Database, counting: Counting, policies: Policies, ingest: Ingest) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._ingest = ingest

    async def put(
        self,
        tenant_id: UUID,
        external_id: str,
        *,
        model: str | None,
        policy: str | Mapping[str, Any] | None,
        metadata: Mapping[str, Json] | None,
    ) -> tuple[SessionRow, bool]:
        """The session as it is now, and whether it is new. Raises InvalidRequest, InvalidPolicy or NotFound."""
        if metadata is not None:
            _check_metadata(metadata)
        ref = None if policy is None else await self._policies.resolve(tenant_id, policy)
        created = await sessions.create(
            self._database,
            tenant_id,
            external_id,
            estimator=self._counting.estimator(model).name,
            model=model,
            policy=ref or ("default", 1),
            metadata=metadata,
        )
        if not created:
            estimator = None if model is None else self._counting.estimator(model).name
            await sessions.update(
                self._database, tenant_id, external_id, model=model, estimator=estimator, policy=ref, metadata=metadata
            )
            self._ingest.forget(sessions.session_key(tenant_id, external_id))
        return await sessions.get(self._database, tenant_id, external_id), created

    async def get(self, tenant_id: UUID, external_id: str) -> SessionRow:
        """Raises NotFound."""
        return await sessions.get(self._database, tenant_id, external_id)

    async def page(self, tenant_id: UUID, limit: int, after: tuple[datetime, UUID] | None) -> list[SessionRow]:
        """Newest first."""
        return await sessions.page(self._database, tenant_id, limit, after)

    async def erase(self, tenant_id: UUID, external_id: str) -> None:
        """Erase a session and all that derives from it. Raises NotFound."""
        if not await sessions.erase(self._database, tenant_id, external_id):
            raise NotFound(f"there is no session {external_id!r}", session=external_id)
        self._ingest.forget(sessions.session_key(tenant_id, external_id))

    async def epochs(
        self, tenant_id: UUID, external_id: str, view: str, after: int, limit: int
    ) -> list[Mapping[str, Any]]:
        """The epochs of a view. Raises NotFound for an unknown session."""
        row = await sessions.get(self._database, tenant_id, external_id)
        return await views.epochs(self._database, row.session_id, view, after, limit)


def _check_metadata(metadata: Mapping[str, Json]) -> None:
    try:
        text = canonical_json(metadata)
        size = len(text.encode())
    except ValueError:
        raise InvalidRequest("metadata holds what is no JSON text", field="metadata") from None
    if size > METADATA_BYTES_MAX:
        raise InvalidRequest(f"metadata takes {size} bytes, at most {METADATA_BYTES_MAX}", field="metadata")
    if "\\u0000" in text:
        raise InvalidRequest("metadata holds a NUL character", field="metadata")
