"""Counts of the work that workers have done, kept in the database: workers have no metrics endpoint."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.store.engine import Database, Executor
from app.store.rows import columns, decode, parameters

BOUNDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, math.inf)
"""Upper bounds, in seconds, of the histogram of delays."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """A piece of finished work: a summary, a delivery or a purge (`kind`), the model or rule that did it, its outcome,
    and the time since it was due."""

    kind: str
    maker: str
    outcome: str
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WorkCount:
    """The work of one kind, maker and outcome that was done within `bound` seconds, but not within the bound before."""

    kind: str
    maker: str
    outcome: str
    bound: float
    number: int
    seconds: float
    input_tokens: int
    output_tokens: int
    newest_at: datetime


async def add(connection: Executor, done: WorkDone, number: int = 1) -> None:
    """Count a piece of work, or `number` pieces."""
    await connection.execute(
        "INSERT INTO work_counts AS w (kind, maker, outcome, bound, number, seconds, input_tokens, output_tokens) "
        "VALUES (:kind, :maker, :outcome, :bound, :number, :seconds, :input_tokens, :output_tokens) "
        "ON CONFLICT (kind, maker, outcome, bound) DO UPDATE SET number = w.number + excluded.number, "
        "seconds = w.seconds + excluded.seconds, input_tokens = w.input_tokens + excluded.input_tokens, "
        "output_tokens = w.output_tokens + excluded.output_tokens, newest_at = now()",
        bound=BOUNDS[bisect_left(BOUNDS, done.seconds)],
        number=number,
        **parameters(done),
    )


async def all_counts(database: Database) -> Sequence[WorkCount]:
    """Return all counts: a few rows for each kind of work."""
    rows = await database.fetch(f"SELECT {columns(WorkCount)} FROM work_counts ORDER BY kind, maker, outcome, bound")
    return [decode(WorkCount, row) for row in rows]
