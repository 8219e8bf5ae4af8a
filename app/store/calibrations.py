"""What reported usage has taught about an estimator: by tenant and named model, and by view."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from app.core.log.events import Json, canonical_json
from app.core.tokens.calibration import Calibration, Claim, Sample
from app.core.tokens.learned import Learned, Point
from app.store.engine import Connection, Database

COLUMNS: Final = "c.estimator, c.ratio, c.margin, c.reported, c.window_tokens, c.window_asked, c.version, c.window_at"
_ALL: Final = f"{COLUMNS}, c.accepted_tokens, c.accepted_at, c.claims, c.samples"


def calibration(row: Sequence[Any]) -> Calibration:
    """A row of COLUMNS, or of these and what was accepted."""
    return Calibration(*row)


async def known(connection: Connection | Database, tenant_id: UUID, model: str | None) -> tuple[Calibration, ...]:
    """What is known of a model, by estimator; nothing of none."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS} FROM calibrations c WHERE c.tenant_id = $1 AND c.model = $2", tenant_id, model
    )
    return tuple(calibration(tuple(row.values())) for row in rows)


async def lock(
    tx: Connection, tenant_id: UUID, model: str, estimator: str, own_margin: float
) -> tuple[Calibration, tuple[Sample, ...]]:
    """What is known by one estimator and its samples, oldest first; nobody else changes them until the transaction
    ends. Before anything is known, a ratio of 1 and the estimator's own margin."""
    key = (tenant_id, model, estimator)
    await tx.execute(
        "INSERT INTO calibrations (tenant_id, model, estimator, samples, reported, ratio, margin) "
        "VALUES ($1, $2, $3, '[]', 0, 1, $4) ON CONFLICT (tenant_id, model, estimator) DO UPDATE "
        "SET updated_at = calibrations.updated_at",
        *key,
        own_margin,
    )
    row = await tx.fetchrow(
        f"SELECT {_ALL} FROM calibrations c WHERE c.tenant_id = $1 AND c.model = $2 AND c.estimator = $3 FOR UPDATE",
        *key,
    )
    if row is None:
        raise RuntimeError("a calibration was deleted")
    *values, claims, samples = row.values()
    known = replace(calibration(values), claims=tuple(Claim(*one) for one in json.loads(claims)))
    return known, tuple(_sample(one) for one in json.loads(samples))


def _sample(row: Sequence[Any]) -> Sample:
    """As stored; rows of earlier versions say neither when nor whose."""
    rest = (*row[2:], *(0, 0.0, "")[len(row) - 2 :])
    return Sample(row[0], row[1], bool(rest[0]), rest[1], rest[2])


async def save(tx: Connection, tenant_id: UUID, model: str, known: Calibration, samples: Sequence[Sample]) -> None:
    """Store what has been learnt. It must be locked by this transaction."""
    rows = [[one.counted, one.reported, int(one.least), one.at, one.source] for one in samples]
    await tx.execute(
        "UPDATE calibrations SET samples = $4, reported = $5, ratio = $6, margin = $7, window_tokens = $8, "
        "window_asked = $9, version = $10, window_at = $11, accepted_tokens = $12, accepted_at = $13, claims = $14, "
        "updated_at = now() WHERE tenant_id = $1 AND model = $2 AND estimator = $3",
        tenant_id,
        model,
        known.estimator,
        canonical_json(rows),
        known.samples,
        known.ratio,
        known.margin,
        known.window_tokens,
        known.window_asked,
        known.version,
        known.window_at,
        known.accepted,
        known.accepted_at,
        canonical_json([[one.asked, one.window, one.source, one.at] for one in known.claims]),
    )


async def forget(database: Database, tenant_id: UUID, model: str | None, estimator: str | None) -> int:
    """How many were forgotten: of a model, an estimator, or all."""
    rows = await database.fetch(
        "DELETE FROM calibrations WHERE tenant_id = $1 AND ($2::text IS NULL OR model = $2) "
        "AND ($3::text IS NULL OR estimator = $3) RETURNING model",
        tenant_id,
        model,
        estimator,
    )
    return len(rows)


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


def learned(stored: str | None) -> Learned | None:
    """What a view's own calls have taught, as its row has it."""
    if stored is None:
        return None
    document: Mapping[str, Any] = json.loads(stored)
    points = tuple(Point(c, r, outside, bool(least), at) for c, r, outside, least, at in document["points"])
    return Learned(document["model"], Calibration(*document["known"]), points, document["outside"])


def learned_json(value: Learned) -> str:
    """As it is stored."""
    known = value.known
    figures: Json = [
        known.estimator,
        known.ratio,
        known.margin,
        known.samples,
        known.window_tokens,
        known.window_asked,
        known.version,
        known.window_at,
        known.accepted,
        known.accepted_at,
    ]
    points: Json = [[p.counted, p.reported, p.outside, int(p.least), p.at] for p in value.points]
    return canonical_json({"model": value.model, "known": figures, "points": points, "outside": value.outside})
