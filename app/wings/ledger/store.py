"""Reads for the ledger: the recorded calls of a view with their outcomes, its epochs, and a tenant's sums."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from app.core import dataclass, replace
from app.core.assembly.inputs import OBSERVED_VIEW
from app.core.lexicon.times import to_seconds
from app.core.record import from_json
from app.store import texts
from app.store.audit import CallRow
from app.store.calls import manifest_columns
from app.store.engine import Database
from app.store.ids import SessionRef
from app.store.reports import ReportedOutcome
from app.store.rows import Row, decode, parameters
from app.store.session_filter import has_prefix


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A recorded call, with its usage if it was reported.

    `tools`, `system` and `ephemeral` are the tokens of these parts, `outside` those sent in addition to the request.
    `marks` are its breakpoints' seqs, tokens and blocks. `usage` is the reported input, cache reads, cache writes and
    output; None if no input was reported. `counted` is in the estimator's tokens; `window`, `outside` and `usage` are
    in the provider's; all others are in calibrated ones, as `estimate` is.
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
    tools: int
    system: int
    ephemeral: int
    marks: tuple[tuple[int, int | None, int | None], ...]
    usage: tuple[int, int | None, int | None, int | None] | None
    failed: bool
    outside: int = 0

    @property
    def estimator_per_calibrated(self) -> float:
        """The estimator's tokens for each calibrated one."""
        return self.counted / self.estimate if self.estimate else 1.0


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An epoch of a view, with the tool list and system prompt of its frontier (0: none)."""

    epoch: int
    cause: str
    changed_seq: int
    stable_tokens: int
    tools_seq: int
    system_seq: int


class LedgerRange(NamedTuple):
    """A tenant's calls in [since, until), of a model (None: all), in sessions whose names begin with `prefix`."""

    tenant_id: UUID
    since: datetime
    until: datetime
    model: str | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class CallSums:
    """Sums over the calls of one model in one format under one policy.

    `reported_calls` is the number of calls with known usage, which `input_tokens` and the like sum up;
    `unreported_tokens` is the estimate of the others, without those that failed. `remaining_tokens` is the
    known input without the estimated share that the contexts leave out. `drawn_calls` is the number of calls of
    sessions that were drawn for a group, held out or not.
    """

    model: str | None
    format: str
    policy: tuple[str, int]
    calls: int
    reported_calls: int
    overflows: int
    unreported_tokens: int
    input_tokens: int
    read_tokens: int
    write_tokens: int
    output_tokens: int
    left_out_tokens: int
    remaining_tokens: int
    drawn_calls: int


@dataclass(frozen=True, slots=True)
class DrawnSums:
    """Sums over the reported calls of one session that was drawn for a group, in one model, format and policy."""

    session_id: UUID
    held_out: bool
    model: str | None
    format: str
    policy: tuple[str, int]
    calls: int
    input_tokens: int
    read_tokens: int
    write_tokens: int


@dataclass(frozen=True, slots=True)
class WarmingSums:
    """Sums over the warmings of one model's calls in one format under one policy, `failed` ones included."""

    model: str | None
    format: str
    policy: tuple[str, int]
    warmings: int
    failed: int
    input_tokens: int
    read_tokens: int
    write_tokens: int


_CALL_COLUMNS: Final = """
       call_id, created_at, head, epoch, policy_name, policy_version, format, model, estimate,
       coalesce(counted, estimate) AS counted, evicted_tokens, breakpoints, input_tokens, cache_read_tokens,
       cache_write_tokens, output_tokens, error IS NOT NULL AS failed, window_tokens, outside_tokens, tools_tokens,
       system_tokens, ephemeral_tokens, clock, breakpoint_tokens, breakpoint_blocks,
       CASE WHEN window_tokens IS NULL THEN manifest END AS manifest
"""
_CALLS: Final = f"""
SELECT {_CALL_COLUMNS}
FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
  AND call_id <= CASE WHEN :last::uuid IS NULL THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff' ELSE :last END
  AND call_id > CASE WHEN :after::uuid IS NULL THEN '00000000-0000-0000-0000-000000000000' ELSE :after END
ORDER BY call_id DESC LIMIT :limit
"""


def _call(row: Row) -> LedgerRow:
    """Decode a row of _CALL_COLUMNS, with the manifest if the call was recorded before these figures had columns."""
    stored = row["manifest"]
    read = row if stored is None else manifest_columns(from_json(texts.loads(stored)))
    unknown = [None] * len(row["breakpoints"])
    figures = (row["input_tokens"], row["cache_read_tokens"], row["cache_write_tokens"], row["output_tokens"])
    return decode(
        LedgerRow,
        row,
        at=to_seconds(read["clock"] or row["created_at"]),
        window=read["window_tokens"],
        tools=read["tools_tokens"],
        system=read["system_tokens"],
        ephemeral=read["ephemeral_tokens"],
        marks=tuple(
            zip(
                row["breakpoints"],
                read["breakpoint_tokens"] or unknown,
                read["breakpoint_blocks"] or unknown,
                strict=True,
            )
        ),
        usage=None if figures[0] is None else figures,
        failed=row["failed"] and figures[0] is None,
        outside=read["outside_tokens"],
    )


def of_report(call: CallRow, outcome: ReportedOutcome) -> LedgerRow:
    """Return a recorded call with its outcome, as `calls` would read it."""
    own = parameters(call) | manifest_columns(call.manifest) | parameters(outcome)
    own["policy_name"], own["policy_version"] = call.policy
    own["failed"], own["manifest"] = outcome.error is not None, None
    return _call(own)


async def calls(
    database: Database, ref: SessionRef, view: str, limit: int, last: UUID | None = None, after: UUID | None = None
) -> list[LedgerRow]:
    """Return a view's newest calls after the call `after` and up to the call `last`, oldest first.

    Those of observed contexts have no usage, since theirs is that of other requests.
    """
    rows = await database.fetch(_CALLS, **ref._asdict(), view=view, limit=limit, last=last, after=after)
    found = [_call(row) for row in reversed(rows)]
    return [replace(row, usage=None) for row in found] if view == OBSERVED_VIEW else found


_EPOCH_COLUMNS: Final = """
       epoch, cause, changed_seq, stable_tokens, coalesce((frontier ->> 'tools_seq')::bigint, 0) AS tools_seq,
       coalesce((frontier ->> 'system_seq')::bigint, 0) AS system_seq
"""
_EPOCHS: Final = f"""
SELECT {_EPOCH_COLUMNS}
FROM epochs WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
  AND epoch >= (SELECT coalesce(max(epoch), 0) FROM epochs
                WHERE session_id = :session_id AND view = :view AND epoch < :first)
ORDER BY epoch
"""


async def epochs(database: Database, ref: SessionRef, view: str, first: int) -> list[EpochRow]:
    """Return a view's epochs from number `first` on and the one before, in order."""
    rows = await database.fetch(_EPOCHS, **ref._asdict(), view=view, first=first)
    return [decode(EpochRow, row) for row in rows]


_SUMS: Final = """
SELECT model, format, policy_name, policy_version, count(*) AS calls, count(input_tokens) AS reported_calls,
       count(*) FILTER (WHERE overflow) AS overflows,
       coalesce(sum(estimate) FILTER (WHERE input_tokens IS NULL AND error IS NULL), 0)::bigint AS unreported_tokens,
       coalesce(sum(input_tokens), 0)::bigint AS input_tokens,
       coalesce(sum(cache_read_tokens), 0)::bigint AS read_tokens,
       coalesce(sum(cache_write_tokens), 0)::bigint AS write_tokens,
       coalesce(sum(output_tokens), 0)::bigint AS output_tokens, sum(evicted_tokens)::bigint AS left_out_tokens,
       coalesce(round(sum(input_tokens * estimate::numeric / greatest(1, estimate + evicted_tokens))), 0)::bigint
         AS remaining_tokens, count(held_out) AS drawn_calls
FROM model_calls WHERE tenant_id = :tenant_id AND created_at >= :since AND created_at < :until AND {only}
GROUP BY model, format, policy_name, policy_version ORDER BY 1, 2, 3, 4
"""
_SENT: Final = f"view <> '{OBSERVED_VIEW}'"
SUMS: Final = _SUMS.format(only=_SENT)
SUMS_OF_MODEL: Final = _SUMS.format(only=f"{_SENT} AND model = :model")
_OF_PREFIX: Final = (
    "(:model::text IS NULL OR model = :model) AND session_id IN "
    f"(SELECT s.session_id FROM sessions s WHERE s.tenant_id = :tenant_id AND {has_prefix('s.external_id', ':prefix')})"
)
SUMS_OF_PREFIX: Final = _SUMS.format(only=f"{_SENT} AND {_OF_PREFIX}")
OBSERVED_SUMS: Final = _SUMS.format(only=f"view = '{OBSERVED_VIEW}' AND {_OF_PREFIX}")


async def sums(database: Database, within: LedgerRange) -> list[CallSums]:
    """Sum the calls of a range by model, format and policy."""
    values = within._asdict()
    sql = SUMS_OF_PREFIX
    if not within.prefix:
        del values["prefix"]
        sql = SUMS_OF_MODEL
        if within.model is None:
            del values["model"]
            sql = SUMS
    rows = await database.fetch(sql, **values)
    return [decode(CallSums, row) for row in rows]


async def observed(database: Database, within: LedgerRange) -> list[CallSums]:
    """Sum the observed calls of a range, as `sums` does those whose contexts were sent."""
    return [decode(CallSums, row) for row in await database.fetch(OBSERVED_SUMS, **within._asdict())]


OBSERVED_CALLS: Final = f"""
SELECT session_id, {_CALL_COLUMNS}
FROM model_calls WHERE tenant_id = :tenant_id AND created_at >= :since AND created_at < :until
  AND view = '{OBSERVED_VIEW}' AND {_OF_PREFIX}
ORDER BY created_at DESC, call_id DESC LIMIT :most
"""
OBSERVED_EPOCHS: Final = f"""
SELECT session_id, {_EPOCH_COLUMNS}
FROM epochs WHERE session_id = ANY(:session_ids::uuid[]) AND tenant_id = :tenant_id AND view = '{OBSERVED_VIEW}'
ORDER BY session_id, epoch
"""


async def observed_lines(
    database: Database, within: LedgerRange, most: int
) -> list[tuple[list[LedgerRow], list[EpochRow]]]:
    """Return the newest observed calls of a range, at most `most`, grouped by the session's line that made them.

    A group is in order and has its epochs. The usage of a call is that of the request that was sent.
    """
    found: dict[UUID, tuple[list[LedgerRow], list[EpochRow]]] = {}
    for row in reversed(await database.fetch(OBSERVED_CALLS, **within._asdict(), most=most)):
        found.setdefault(row["session_id"], ([], []))[0].append(_call(row))
    for row in await database.fetch(OBSERVED_EPOCHS, tenant_id=within.tenant_id, session_ids=list(found)):
        found[row["session_id"]][1].append(decode(EpochRow, row))
    return list(found.values())


DRAWN: Final = f"""
SELECT coalesce(s.root, s.session_id) AS session_id, m.held_out, m.model, m.format, m.policy_name, m.policy_version,
       count(*) AS calls, sum(m.input_tokens)::bigint AS input_tokens,
       coalesce(sum(m.cache_read_tokens), 0)::bigint AS read_tokens,
       coalesce(sum(m.cache_write_tokens), 0)::bigint AS write_tokens
FROM model_calls m JOIN sessions s ON s.session_id = m.session_id AND s.tenant_id = m.tenant_id
WHERE m.tenant_id = :tenant_id AND m.created_at >= :since AND m.created_at < :until
  AND m.held_out IS NOT NULL AND m.input_tokens IS NOT NULL AND (:model::text IS NULL OR m.model = :model)
  AND {has_prefix("s.external_id", ":prefix")}
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1 LIMIT :most
"""


async def drawn(database: Database, within: LedgerRange, most: int) -> list[DrawnSums]:
    """Sum the calls of the sessions that were drawn for a group, as `sums` does all; `most` is the number of rows.

    The sessions are in the order of their ids, so that the first of many are a sample.
    """
    rows = await database.fetch(DRAWN, **within._asdict(), most=most)
    return [decode(DrawnSums, row) for row in rows]


_WARMED: Final = """
SELECT model, format, policy_name, policy_version, count(*) AS warmings,
       count(*) FILTER (WHERE input_tokens IS NULL) AS failed,
       coalesce(sum(input_tokens), 0)::bigint AS input_tokens,
       coalesce(sum(cache_read_tokens), 0)::bigint AS read_tokens,
       coalesce(sum(cache_write_tokens), 0)::bigint AS write_tokens
FROM warmings WHERE tenant_id = :tenant_id AND {only}
GROUP BY model, format, policy_name, policy_version ORDER BY 1, 2, 3, 4
"""
WARMED_VIEW: Final = _WARMED.format(only="session_id = :session_id AND view = :view")
WARMED: Final = _WARMED.format(only=f"created_at >= :since AND created_at < :until AND {_OF_PREFIX}")
"""An empty prefix matches all sessions."""


async def view_warmings(database: Database, ref: SessionRef, view: str) -> list[WarmingSums]:
    """Sum the warmings of a view by model, format and policy."""
    rows = await database.fetch(WARMED_VIEW, **ref._asdict(), view=view)
    return [decode(WarmingSums, row) for row in rows]


async def warmings(database: Database, within: LedgerRange) -> list[WarmingSums]:
    """Sum the warmings of a range, as `sums` does its calls."""
    return [decode(WarmingSums, row) for row in await database.fetch(WARMED, **within._asdict())]
