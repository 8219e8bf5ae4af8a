"""Views' epochs as they are listed, and the effects of a redaction on them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.plan.state.frontier import START, Frontier, from_json, to_json
from app.core.plan.state.stubs import erase_quotes
from app.store import texts
from app.store.engine import Connection, Database
from app.store.rows import columns, decode

LEGIBLE: Final = ("folds", "system_seq", "tools_seq")
"""Members of a frontier that statements read; they hold no content."""


@dataclass(frozen=True, slots=True)
class ListedEpoch:
    """One epoch of a view, without its frontier."""

    epoch: int
    head: int
    cause: str
    tokens_before: int
    tokens_after: int
    created_at: datetime


async def page(database: Database, session_id: UUID, view: str, after: int, limit: int) -> list[ListedEpoch]:
    """Return the epochs of a view after number `after`, in order."""
    rows = await database.fetch(
        f"SELECT {columns(ListedEpoch)} FROM epochs "
        "WHERE session_id = :session_id AND view = :view AND epoch > :after ORDER BY epoch LIMIT :limit",
        session_id=session_id,
        view=view,
        after=after,
        limit=limit,
    )
    return [decode(ListedEpoch, row) for row in rows]


@dataclass(frozen=True, slots=True)
class CurrentEpoch:
    """A view's policy, and its current epoch with its frontier."""

    policy: tuple[str, int]
    epoch: int
    frontier: Frontier


async def current(database: Database, session_id: UUID, view: str) -> CurrentEpoch | None:
    """Return a view's policy and current epoch; None for a view without a context yet."""
    row = await database.fetchrow(
        "SELECT v.policy_name, v.policy_version, v.epoch, e.frontier FROM views v "
        "LEFT JOIN epochs e ON e.session_id = v.session_id AND e.view = v.view AND e.epoch = v.epoch "
        "WHERE v.session_id = :session_id AND v.view = :view",
        session_id=session_id,
        view=view,
    )
    if row is None:
        return None
    frontier = from_json(texts.loads(row["frontier"])) if row["frontier"] else START
    return decode(CurrentEpoch, row, frontier=frontier)


async def reset_plans(tx: Connection, session_id: UUID) -> None:
    """Have all views of a session planned from scratch, by moving each to an epoch that is not written yet."""
    await tx.execute(
        "UPDATE views SET carry_tokens = 0, epoch = epochs + 1, epochs = epochs + 1, afresh = 'redaction' "
        "WHERE session_id = :session_id",
        session_id=session_id,
    )


async def clear_quotes(tx: Connection, session_id: UUID, seq: int) -> None:
    """Erase the quotes of an event from the session's epochs. The transaction must be a redaction of this session."""
    rows = await tx.fetch(
        "SELECT view, epoch, frontier FROM epochs WHERE session_id = :session_id AND (frontier::jsonb "
        "@> jsonb_build_object('stubs', jsonb_build_array(jsonb_build_object('seq', :seq::bigint))) "
        "OR frontier::jsonb #> '{left_out,files}' @> jsonb_build_array(jsonb_build_array(:seq::bigint)) "
        "OR starts_with(frontier::text, :sealed))",
        session_id=session_id,
        seq=seq,
        sealed=texts.SEALED_JSON,
    )
    for row in rows:
        await tx.execute(
            "UPDATE epochs SET frontier = :frontier::json "
            "WHERE session_id = :session_id AND view = :view AND epoch = :epoch",
            session_id=session_id,
            view=row["view"],
            epoch=row["epoch"],
            frontier=texts.dumps(to_json(erase_quotes(from_json(texts.loads(row["frontier"])), seq)), clear=LEGIBLE),
        )
