"""Notifications that triggers send on a single Postgres, and statements send with shards (docs/scaling.md).

A shard has neither the workers' queue nor listeners. Code that opens an epoch or changes a compaction run therefore
calls a function that touches no shard: it runs on the coordinator, in the same transaction. The change, its stream
entry and its webhook deliveries are stored in the session's shard and committed together; afterwards the coordinator
commits the deliveries' jobs and notifies. If a crash prevents the second commit, workers find deliveries without a job
every minute, and a stream reads the missed changes whenever it reconnects.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from uuid import UUID

from app.store.engine import Connection, Database

Result = TypeVar("Result")

STREAM_CHANNEL: Final = "palimpsest_stream"
"""The channel of notifications of a session's additions, while it has a stream; each carries the session's id."""


async def notify_stream(tx: Connection, session_id: UUID) -> None:
    """Notify the readers of a session's stream when the transaction ends."""
    await tx.execute("SELECT pg_notify(:channel, :session)", channel=STREAM_CHANNEL, session=str(session_id))


async def notify_epoch_opened(tx: Connection, session_id: UUID, view: str, epoch: int) -> None:
    """Notify of an epoch that this transaction has stored. Does nothing unless sessions are in shards."""
    if await tx.distributed():
        await tx.execute(
            "SELECT palimpsest_epoch_opened(:session_id, :view, :epoch)",
            session_id=session_id,
            view=view,
            epoch=epoch,
        )


async def change_runs(
    connection: Connection | Database,
    session_id: UUID,
    ids: Sequence[UUID],
    move: Callable[[Connection | Database], Awaitable[Result]],
) -> Result:
    """Run `move`, which creates or changes compaction runs, and notify of those whose state has changed."""
    if not await connection.distributed():
        return await move(connection)

    async def moved(tx: Connection) -> Result:
        rows = await tx.fetch(
            "SELECT id, state, tokens_before FROM compactions WHERE session_id = :session_id AND id = ANY(:ids) "
            "FOR NO KEY UPDATE",
            session_id=session_id,
            ids=list(ids),
        )
        was = {row["id"]: (row["state"], row["tokens_before"]) for row in rows}
        result = await move(tx)
        for id in ids:
            state, tokens = was.get(id, (None, None))
            await tx.execute(
                "SELECT palimpsest_compaction_moved(:session_id, :id, :state, :tokens)",
                session_id=session_id,
                id=id,
                state=state,
                tokens=tokens,
            )
        return result

    return await connection.run_in_transaction(moved)
