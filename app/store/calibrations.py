"""Calibrations learned from reported usage: by tenant, model and estimator, and by view."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from itertools import starmap
from typing import Any, Final
from uuid import UUID

from app.core import dataclass, replace
from app.core.log.events import Json, canonical_json
from app.core.tokens.calibration import Calibration, Claim, Sample
from app.core.tokens.learned import Learned, Point
from app.store.engine import Connection, Database, Executor
from app.store.rows import Row, decode, parameters

_sample_json: Final = lru_cache(4_096)(canonical_json)  # most samples of a calibration have been encoded before
COLUMNS: Final = "c.estimator, c.ratio, c.margin, c.reported, c.window_tokens, c.window_asked, c.version, c.window_at"


def calibration(record: Iterable[Any]) -> Calibration:
    """Decode a record of COLUMNS, which are the first fields of a calibration."""
    return Calibration(*record)


async def of_model(connection: Executor, tenant_id: UUID, model: str | None) -> tuple[Calibration, ...]:
    """Return the calibrations of a model, one per estimator; none if the model is None."""
    rows = await connection.fetch(
        f"SELECT {COLUMNS} FROM calibrations c WHERE c.tenant_id = :tenant_id AND c.model = :model",
        tenant_id=tenant_id,
        model=model,
    )
    return tuple(map(calibration, rows))


FIELDS: Final = f"{COLUMNS}, c.accepted_tokens, c.accepted_at, c.claims, c.samples, c.updated_at"
OF_KEY: Final = "c.tenant_id = :tenant_id AND c.model = :model AND c.estimator = :estimator"
_READ: Final = f"SELECT {FIELDS} FROM calibrations c WHERE {OF_KEY}"
LOCK: Final = f"{_READ} FOR UPDATE"
LOCK_IF_FREE: Final = f"{LOCK} SKIP LOCKED"
_ADD: Final = (
    "INSERT INTO calibrations AS c (tenant_id, model, estimator, samples, reported, ratio, margin) "
    "VALUES (:tenant_id, :model, :estimator, '[]', 0, 1, :margin) "
    "ON CONFLICT (tenant_id, model, estimator) DO UPDATE SET updated_at = c.updated_at "
    f"RETURNING {FIELDS}"
)


@dataclass(frozen=True, slots=True)
class CalibrationSamples:
    """A calibration and its samples, oldest first, as last changed at `updated_at`. It may be saved only if it is
    `locked`, or by a statement that checks that it has not been changed since. `encoded` are the samples as JSON. Only
    `relearned` sets them, and `values` needs them."""

    known: Calibration
    samples: tuple[Sample, ...]
    locked: bool
    updated_at: datetime
    encoded: tuple[str, ...] = ()

    def relearned(self, known: Calibration, samples: tuple[Sample, ...]) -> "CalibrationSamples":
        """Return the calibration with other samples: mostly the same ones and a new one, which alone is encoded."""
        if samples and samples[:-1] == self.samples[1 - len(samples) :] and self.encoded:
            encoded = (*self.encoded[1 - len(samples) :], canonical_json(samples[-1]))
        else:
            encoded = tuple(map(_sample_json, samples))
        return replace(self, known=known, samples=samples, encoded=encoded)


async def lock(
    tx: Connection, tenant_id: UUID, model: str, estimator: str, own_margin: float, *, wait: bool
) -> CalibrationSamples:
    """Return a calibration and its samples, locked until the transaction ends, or unlocked if another one has it.

    `wait`: wait for the other transaction instead. Without samples the ratio is 1 and the margin the estimator's own.
    """
    read = partial(tx.fetchrow, tenant_id=tenant_id, model=model, estimator=estimator)
    row = await read(LOCK if wait else LOCK_IF_FREE)
    locked = row is not None
    if row is None and not wait:
        row = await read(_READ)
    if row is None:
        row, locked = await read(_ADD, margin=own_margin), True
    if row is None:
        raise RuntimeError("a calibration was deleted")
    return with_samples(row, locked=locked)


def with_samples(row: Row, *, locked: bool) -> CalibrationSamples:
    """Decode a row of FIELDS."""
    claims = tuple(starmap(Claim, json.loads(row["claims"])))
    known = decode(Calibration, row, reports=row["reported"], accepted=row["accepted_tokens"], claims=claims)
    # Samples of earlier versions have neither time nor source.
    return CalibrationSamples(known, tuple(starmap(Sample, json.loads(row["samples"]))), locked, row["updated_at"])


SAVE: Final = (
    "UPDATE calibrations c SET samples = :encoded, reported = :reports, ratio = :ratio, margin = :margin, "
    "window_tokens = :window_tokens, window_asked = :window_asked, version = :version, window_at = :window_at, "
    "accepted_tokens = :accepted, accepted_at = :accepted_at, claims = :claims, updated_at = now() "
    f"WHERE {OF_KEY}"
)


def values(tenant_id: UUID, model: str, changed: CalibrationSamples) -> dict[str, object]:
    """Return the parameters of SAVE, for samples returned by `relearned`."""
    return {
        "tenant_id": tenant_id,
        "model": model,
        "encoded": f"[{','.join(changed.encoded)}]",
        **parameters(changed.known),
        "claims": canonical_json([[c.asked, c.window, c.source, c.at] for c in changed.known.claims]),
    }


async def delete(database: Database, tenant_id: UUID, model: str | None, estimator: str | None) -> int:
    """Delete a tenant's calibrations, or only those of a model or an estimator; return the number deleted."""
    rows = await database.fetch(
        "DELETE FROM calibrations WHERE tenant_id = :tenant_id AND (:model::text IS NULL OR model = :model) "
        "AND (:estimator::text IS NULL OR estimator = :estimator) RETURNING model",
        tenant_id=tenant_id,
        model=model,
        estimator=estimator,
    )
    return len(rows)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A listed calibration; `samples`, named by the API, is the number of calls with reported usage."""

    model: str
    estimator: str
    ratio: float
    margin: float
    samples: int
    window_tokens: int | None
    updated_at: datetime


async def page(database: Database, tenant_id: UUID, limit: int, after: tuple[str, str] | None) -> list[KnownModel]:
    """Return a page of a tenant's calibrations, by model and estimator."""
    model, estimator = after or (None, None)
    rows = await database.fetch(
        "SELECT model, estimator, ratio, margin, reported AS samples, window_tokens, updated_at FROM calibrations "
        "WHERE tenant_id = :tenant_id AND (:model::text IS NULL OR (model, estimator) > (:model, :estimator::text)) "
        "ORDER BY model, estimator LIMIT :limit",
        tenant_id=tenant_id,
        limit=limit,
        model=model,
        estimator=estimator,
    )
    return [decode(KnownModel, row) for row in rows]


def learned(stored: str | None) -> Learned | None:
    """Decode the calibration that a view has learned from its own calls."""
    if stored is None:
        return None
    document: Mapping[str, Any] = json.loads(stored)
    points = tuple(starmap(Point, document["points"]))
    return Learned(
        document["model"], Calibration(*document["known"]), points, document["outside"], document.get("caches")
    )


def learned_json(value: Learned) -> str:
    """Encode the calibration that a view has learned from its own calls, its fields in their order without names."""
    figures: Json = list(parameters(value.known, "claims").values())
    fields = {"model": value.model, "known": figures, "points": value.points, "outside": value.outside}
    return canonical_json({**fields, "caches": value.caches})
