"""What triggers tell of on one Postgres, told by statements where sessions are in shards (docs/scaling.md).

Beside a shard there is neither the workers' queue nor anyone who listens. So whoever opens an epoch or moves a run of
compaction calls a function there that touches no shard itself: it runs on the coordinator, in the same transaction. The
change, the stream's entry and the deliveries of webhooks lie in the session's shard, and are committed together;
behind them the coordinator commits the deliveries' jobs and notifies. What a crash between the two takes is looked for:
a delivery without a job by the workers, every minute, and a stream's news whenever its connection is new.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from app.store.engine import Connection, Database

Result = TypeVar("Result")


async def epoch_opened(tx: Connection, session_id: UUID, view: str, epoch: int) -> None:
    """Tell of an epoch that this transaction has stored. Nothing to do unless sessions are in shards."""
    if await tx.distributed():
        await tx.execute(
            "SELECT palimpsest_epoch_opened(:session_id, :view, :epoch)",
            session_id=session_id,
            view=view,
            epoch=epoch,
        )


async def of_runs(
    connection: Connection | Database,
    session_id: UUID,
    ids: Sequence[UUID],
    move: Callable[[Connection | Database], Awaitable[Result]],
) -> Result:
    """Have `move` make or move runs of compaction, and tell of those whose state it has changed."""
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

    return await connection.together(moved)
