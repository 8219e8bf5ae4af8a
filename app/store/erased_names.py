"""Names of sessions erased on request, by key: such a name can be used again only for a session with metadata."""

from uuid import UUID

from app.core.errors import SessionErased
from app.store.engine import Connection
from app.store.sessions import session_key


async def add(tx: Connection, tenant_id: UUID, session_id: UUID) -> None:
    """Record that a session is erased, in the transaction that erases it."""
    await tx.execute(
        "INSERT INTO erased_names (session_id, tenant_id) VALUES (:session_id, :tenant_id) ON CONFLICT DO NOTHING",
        session_id=session_id,
        tenant_id=tenant_id,
    )


async def admit(tx: Connection, tenant_id: UUID, name: str, *, has_metadata: bool) -> None:
    """Admit a session that this transaction has created. Raises SessionErased for an erased name.

    A session with metadata (`has_metadata`) may have such a name, which then counts as erased no longer. Call this
    after the creation: creating a session while it is being erased waits for the erasure.
    """
    of_name = {"session_id": session_key(tenant_id, name), "tenant_id": tenant_id}
    where = "WHERE session_id = :session_id AND tenant_id = :tenant_id"
    if has_metadata:
        await tx.execute(f"DELETE FROM erased_names {where}", **of_name)
    elif await tx.fetchrow(f"SELECT FROM erased_names {where}", **of_name) is not None:
        raise SessionErased(
            f"session {name!r} was erased on request: to begin again under this name, create it with "
            f"PUT /v1/sessions/{name} and its metadata (by which it can be erased again); or use another name",
            session=name,
        )
