"""Reads of all calls of a view in at most 600 columns, and of the calls with which its epochs begin."""

from collections.abc import Sequence
from typing import Final

from app.core.audit.strata import CallColumn, EpochStart
from app.core.record.manifest import CallManifest, UnknownVersion, from_json
from app.store import texts
from app.store.engine import Database
from app.store.ids import SessionRef
from app.store.rows import decode

COLUMNS_MAX: Final = 600
STARTS_MAX: Final = 2_000
"""Number of beginnings of epochs that are read, the newest."""


# The largest call of each column stands for it. Only that call's manifest is read.
_COLUMNS: Final = """
WITH numbered AS (
    SELECT call_id, created_at, epoch, estimate, target, input_tokens, overflow, error IS NOT NULL AS wrong,
        row_number() OVER (ORDER BY call_id) AS number, count(*) OVER () AS total
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
), placed AS (
    SELECT *, (number - 1) * least(total, :most) / total AS place FROM numbered
), chosen AS (
    SELECT DISTINCT ON (place) *, min(number) OVER part AS first, max(number) OVER part AS last,
        count(*) FILTER (WHERE overflow) OVER part AS refused,
        count(*) FILTER (WHERE wrong AND NOT overflow) OVER part AS failed
    FROM placed WINDOW part AS (PARTITION BY place) ORDER BY place, estimate DESC, number
)
SELECT c.*, m.manifest FROM chosen c JOIN model_calls m ON m.call_id = c.call_id
WHERE m.session_id = :session_id AND m.tenant_id = :tenant_id ORDER BY c.number
"""


async def read_columns(database: Database, ref: SessionRef, view: str, most: int = COLUMNS_MAX) -> list[CallColumn]:
    """Return a view's calls in at most `most` columns, oldest first."""
    rows = await database.fetch(_COLUMNS, **ref._asdict(), view=view, most=most)
    columns = []
    for row in rows:
        made = _manifest(row["manifest"])
        parts = {"by_source": made.by_source, "stalled": made.stalled, "unfit": bool(made.unfit)}
        columns.append(decode(CallColumn, row, **parts))
    return columns


def _manifest(stored: str) -> CallManifest:
    try:
        found = texts.loads(stored)
        return from_json(found) if isinstance(found, dict) else CallManifest()
    except UnknownVersion:
        return CallManifest()


_STARTS: Final = """
WITH numbered AS (
    SELECT call_id, epoch, created_at, row_number() OVER oldest AS number, lag(call_id) OVER oldest AS before,
        lag(epoch) OVER oldest AS former
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
    WINDOW oldest AS (ORDER BY call_id)
)
SELECT n.epoch, n.number, n.call_id, n.before, n.created_at, e.cause, e.tokens_before, e.tokens_after
FROM numbered n LEFT JOIN epochs e ON e.session_id = :session_id AND e.view = :view AND e.epoch = n.epoch
WHERE n.epoch IS DISTINCT FROM n.former AND n.epoch > 0 ORDER BY n.number DESC LIMIT :limit
"""


async def epoch_starts(database: Database, ref: SessionRef, view: str, limit: int = STARTS_MAX) -> list[EpochStart]:
    """Return the calls with which a view's epochs begin, newest first."""
    rows = await database.fetch(_STARTS, **ref._asdict(), view=view, limit=limit)
    return [decode(EpochStart, row) for row in rows]


async def epoch_causes(database: Database, ref: SessionRef, view: str, epochs: Sequence[int]) -> dict[int, str]:
    """Return the causes of these epochs of a view, by number."""
    rows = await database.fetch(
        "SELECT epoch, cause FROM epochs WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view "
        "AND epoch = ANY(:epochs::int[])",
        **ref._asdict(),
        view=view,
        epochs=list(epochs),
    )
    return {row["epoch"]: row["cause"] for row in rows}
