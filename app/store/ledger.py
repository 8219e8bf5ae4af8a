"""What the ledger is made of: the recorded calls of a view with their outcomes, its epochs, and sums over a tenant."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.store.engine import Database
from app.store.sessions import within


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A recorded call. `sizes` are its tokens by source, `marks` its breakpoints' seqs, tokens and blocks, `outside` is
    what was sent beside it, in the provider's tokens.

    `usage` is what was reported of input, cache reads, cache writes and output; None without an input.
    """

    call_id: UUID
    created_at: datetime
    at: float
    head: int
    epoch: int
    policy: tuple[str, int]
    format: str
    model: str | None
    estimate: int
    counted: int
    evicted_tokens: int
    window: int
    sizes: Mapping[str, int]
    marks: tuple[tuple[int, int | None, int | None], ...]
    usage: tuple[int, int | None, int | None, int | None] | None
    failed: bool
    outside: int = 0


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An epoch of a view, with what of its frontier stands in front of the conversation."""

    epoch: int
    cause: str
    changed_seq: int
    stable_tokens: int
    tools_seq: int
    system_seq: int


_CALLS: Final = """
SELECT call_id, created_at, head, epoch, policy_name, policy_version, format, model, estimate,
       coalesce(counted, estimate) AS counted, evicted_tokens, breakpoints, input_tokens, cache_read_tokens,
       cache_write_tokens, output_tokens, error IS NOT NULL AS failed, manifest ->> 'window' AS window_tokens,
       manifest ->> 'outside' AS outside,
       extract(epoch FROM coalesce((manifest ->> 'now')::timestamptz, created_at))::float8 AS at,
       manifest -> 'by_source' AS by_source, manifest -> 'breakpoint_tokens' AS breakpoint_tokens,
       manifest -> 'breakpoint_blocks' AS breakpoint_blocks
FROM model_calls WHERE session_id = $1 AND tenant_id = $2 AND view = $3 ORDER BY call_id DESC LIMIT $4
"""


async def calls(database: Database, session_id: UUID, tenant_id: UUID, view: str, limit: int) -> list[LedgerRow]:
    """The view's newest calls, in the order in which they were made."""
    rows = await database.fetch(_CALLS, session_id, tenant_id, view, limit)
    return [_call(row) for row in reversed(rows)]


def _call(row: Any) -> LedgerRow:
    seqs = list(row["breakpoints"])
    tokens = _list(row["breakpoint_tokens"], len(seqs))
    blocks = _list(row["breakpoint_blocks"], len(seqs))
    figures = (row["input_tokens"], row["cache_read_tokens"], row["cache_write_tokens"], row["output_tokens"])
    return LedgerRow(
        call_id=row["call_id"],
        created_at=row["created_at"],
        at=row["at"],
        head=row["head"],
        epoch=row["epoch"],
        policy=(row["policy_name"], row["policy_version"]),
        format=row["format"],
        model=row["model"],
        estimate=row["estimate"],
        counted=row["counted"],
        evicted_tokens=row["evicted_tokens"],
        window=int(row["window_tokens"] or 0),
        sizes=json.loads(row["by_source"] or "{}"),
        marks=tuple(zip(seqs, tokens, blocks, strict=True)),
        usage=None if figures[0] is None else figures,
        failed=row["failed"] and figures[0] is None,
        outside=int(row["outside"] or 0),
    )


def _list(text: str | None, length: int) -> list[int | None]:
    """Records of earlier versions have none."""
    return [None] * length if text is None else json.loads(text)


async def epochs(database: Database, session_id: UUID, tenant_id: UUID, view: str, first: int) -> list[EpochRow]:
    """The view's epochs from number `first` on, and the one before it, in order."""
    rows = await database.fetch(
        "SELECT epoch, cause, changed_seq, stable_tokens, coalesce((frontier ->> 'tools_seq')::bigint, 0) AS tools_seq,"
        " coalesce((frontier ->> 'system_seq')::bigint, 0) AS system_seq FROM epochs WHERE session_id = $1"
        " AND tenant_id = $2 AND view = $3 AND epoch >= (SELECT coalesce(max(epoch), 0) FROM epochs"
        " WHERE session_id = $1 AND view = $3 AND epoch < $4) ORDER BY epoch",
        session_id,
        tenant_id,
        view,
        first,
    )
    return [EpochRow(*row.values()) for row in rows]


_SUMS: Final = """
SELECT model, format, policy_name, policy_version, count(*) AS calls, count(input_tokens) AS reported,
       count(*) FILTER (WHERE overflow) AS overflows, sum(estimate)::bigint AS estimate,
       coalesce(sum(estimate) FILTER (WHERE input_tokens IS NULL AND error IS NULL), 0)::bigint AS unreported_tokens,
       coalesce(sum(input_tokens), 0)::bigint AS input_tokens,
       coalesce(sum(cache_read_tokens), 0)::bigint AS read_tokens,
       coalesce(sum(cache_write_tokens), 0)::bigint AS write_tokens,
       coalesce(sum(output_tokens), 0)::bigint AS output_tokens, sum(evicted_tokens)::bigint AS left_out_tokens
FROM model_calls WHERE tenant_id = $1 AND created_at >= $2 AND created_at < $3 {only}
GROUP BY model, format, policy_name, policy_version ORDER BY 1, 2, 3, 4
"""
SUMS: Final = _SUMS.format(only="")
SUMS_OF_MODEL: Final = _SUMS.format(only="AND model = $4")
SUMS_OF_PREFIX: Final = _SUMS.format(
    only="AND ($4::text IS NULL OR model = $4) AND session_id IN "
    f"(SELECT s.session_id FROM sessions s WHERE s.tenant_id = $1 AND {within('s.external_id', '$5')})"
)


async def sums(
    database: Database, tenant_id: UUID, since: datetime, until: datetime, model: str | None, prefix: str = ""
) -> list[Mapping[str, Any]]:
    """A tenant's calls from `since` to before `until`, by model, format and policy; with a `prefix` only those of
    sessions whose names begin with it."""
    if prefix:
        return [dict(row) for row in await database.fetch(SUMS_OF_PREFIX, tenant_id, since, until, model, prefix)]
    if model is None:
        return [dict(row) for row in await database.fetch(SUMS, tenant_id, since, until)]
    return [dict(row) for row in await database.fetch(SUMS_OF_MODEL, tenant_id, since, until, model)]
