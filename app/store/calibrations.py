"""What reported usage has taught about an estimator, by tenant and model; a call without a model has the name ''."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from app.core.calibration import Calibration, Sample
from app.core.events import canonical_json
from app.store.engine import Connection, Database

COLUMNS: Final = "c.estimator, c.ratio, c.margin, c.reported, c.window_tokens, c.window_asked, c.version"


def calibration(row: Sequence[Any]) -> Calibration:
    """A row of COLUMNS."""
    return Calibration(*row)


async def known(connection: Connection | Database, tenant_id: UUID, model: str | None) -> tuple[Calibration, ...]:
    """What is known of a model, by estimator."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS} FROM calibrations c WHERE c.tenant_id = $1 AND c.model = $2", tenant_id, model or ""
    )
    return tuple(calibration(tuple(row.values())) for row in rows)


async def lock(
    tx: Connection, tenant_id: UUID, model: str | None, estimator: str, own_margin: float
) -> tuple[Calibration, tuple[Sample, ...]]:
    """What is known by one estimator and its samples, oldest first; nobody else changes them until the transaction
    ends. Before anything is known, a ratio of 1 and the estimator's own margin."""
    key = (tenant_id, model or "", estimator)
    await tx.execute(
        "INSERT INTO calibrations (tenant_id, model, estimator, samples, reported, ratio, margin) "
        "VALUES ($1, $2, $3, '[]', 0, 1, $4) ON CONFLICT DO NOTHING",
        *key,
        own_margin,
    )
    row = await tx.fetchrow(
        f"SELECT {COLUMNS}, c.samples FROM calibrations c "
        "WHERE c.tenant_id = $1 AND c.model = $2 AND c.estimator = $3 FOR UPDATE",
        *key,
    )
    if row is None:
        raise RuntimeError("a calibration was deleted")
    *values, samples = row.values()
    return calibration(values), tuple(Sample(one[0], one[1], len(one) > 2) for one in json.loads(samples))


async def save(
    tx: Connection, tenant_id: UUID, model: str | None, known: Calibration, samples: Sequence[Sample]
) -> None:
    """Store what has been learnt. It must be locked by this transaction."""
    rows = [[one.counted, one.reported, *([1] if one.least else [])] for one in samples]
    await tx.execute(
        "UPDATE calibrations SET samples = $4, reported = $5, ratio = $6, margin = $7, window_tokens = $8, "
        "window_asked = $9, version = $10, updated_at = now() WHERE tenant_id = $1 AND model = $2 AND estimator = $3",
        tenant_id,
        model or "",
        known.estimator,
        canonical_json(rows),
        known.samples,
        known.ratio,
        known.margin,
        known.window_tokens,
        known.window_asked,
        known.version,
    )


async def page(
    database: Database, tenant_id: UUID, limit: int, after: tuple[str, str] | None
) -> list[Mapping[str, Any]]:
    """All that is known, by model and estimator."""
    rows = await database.fetch(
        "SELECT model, estimator, ratio, margin, reported, window_tokens, updated_at FROM calibrations "
        "WHERE tenant_id = $1 AND ($3::text IS NULL OR (model, estimator) > ($3, $4::text)) "
        "ORDER BY model, estimator LIMIT $2",
        tenant_id,
        limit,
        *(after or (None, None)),
    )
    return [dict(row) for row in rows]
