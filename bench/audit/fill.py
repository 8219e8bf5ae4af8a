"""A database full of records of calls, generated inside Postgres."""

import json
import time
from dataclasses import dataclass
from typing import Final

import asyncpg

from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT

CALLS_PER_SESSION: Final = 250
CALLS_PER_EPOCH: Final = 25
AT_ONCE: Final = 100
"""Sessions that are active at the same time."""
DAYS: Final = 90
CHUNK: Final = 250_000
MODELS: Final = ("claude-sonnet-4-5", "gpt-5", "gpt-4o", "gpt-5-mini", "claude-haiku-4-5", "rare-model")
MANIFEST: Final = {
    "window": 200_000,
    "reserve": 16_384,
    "injection_reserve": 0,
    "estimator": "heuristic",
    "by_source": {
        "tools": 5120,
        "system": 2048,
        "summaries": 2800,
        "history": 81233,
        "current_turn": 9120,
        "ephemeral": 12,
    },
    "prefix_sha256": "0" * 64,
    "breakpoint_kinds": ["system", "previous", "chain", "tail"],
    "breakpoint_tokens": [7168, 50000, 70000, 89988],
    "breakpoint_blocks": [0, 80, 160, 240],
    "summaries": 3,
    "calibration": {"ratio": 1.1234, "margin": 0.0521, "samples": 64},
}


@dataclass(frozen=True, slots=True)
class Filled:
    """The number and size of the records written."""

    calls: int
    sessions: int
    seconds: float
    table_bytes: int
    index_bytes: int
    row_bytes: int


async def fill(connection: asyncpg.Connection, calls: int) -> Filled:
    """Write `calls` records over the last DAYS days, in sessions of CALLS_PER_SESSION, with epochs and summaries."""
    started = time.perf_counter()
    sessions = max(1, calls // CALLS_PER_SESSION)
    indexes = await connection.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'model_calls' AND indexname NOT LIKE '%pkey'"
    )
    await connection.execute("SET synchronous_commit = off")
    await connection.execute("SET maintenance_work_mem = '512MB'")
    for index in indexes:
        await connection.execute(f"DROP INDEX {index['indexname']}")
    await _sessions(connection, sessions)
    for first in range(0, calls, CHUNK):
        await connection.execute(_CALLS, first, min(first + CHUNK, calls), calls, json.dumps(MANIFEST))
    for index in indexes:
        await connection.execute(index["indexdef"])
    await connection.execute("VACUUM ANALYZE model_calls")
    await connection.execute("VACUUM ANALYZE epochs")
    await connection.execute("VACUUM ANALYZE summaries")
    await connection.execute("VACUUM ANALYZE sessions")
    await connection.execute("CHECKPOINT")
    sizes = await connection.fetchrow(
        "SELECT pg_table_size('model_calls') AS t, pg_indexes_size('model_calls') AS i, "
        "(SELECT avg(pg_column_size(m))::int FROM (SELECT * FROM model_calls LIMIT 1000) m) AS r"
    )
    assert sizes is not None
    return Filled(calls, sessions, time.perf_counter() - started, sizes["t"], sizes["i"], sizes["r"])


async def _sessions(connection: asyncpg.Connection, sessions: int) -> None:
    names = [f"bench-{number}" for number in range(sessions)]
    await connection.execute("CREATE TABLE numbered (n INT PRIMARY KEY, session_id UUID NOT NULL)")
    await connection.copy_records_to_table(
        "numbered", records=[(number, session_key(DEFAULT_TENANT, name)) for number, name in enumerate(names)]
    )
    await connection.execute(
        "INSERT INTO sessions (session_id, tenant_id, external_id, estimator, head) "
        f"SELECT session_id, '{DEFAULT_TENANT}', 'bench-' || n, 'heuristic', 1000 FROM numbered"
    )
    await connection.execute(
        "INSERT INTO summaries (session_id, tenant_id, id, cover_id, depth, from_seq, to_seq, text, digest, tokens, "
        "source_tokens, events, turns, starts_at, ends_at, summarizer, usage, degraded, status) "
        f"SELECT session_id, '{DEFAULT_TENANT}', md5('s' || n)::uuid, session_id, 0, 1, 200, repeat('word ', 400), "
        "'{}', 2000, 20000, 200, '{1}', now(), now(), 'extractive', '{}', false, 'live' FROM numbered"
    )
    await connection.execute(_EPOCHS)


_EPOCHS: Final = f"""
INSERT INTO epochs (session_id, tenant_id, view, epoch, head, cause, frontier, floor, kept, stubbed, tokens_before,
    tokens_after, folded, evicted)
SELECT session_id, '{DEFAULT_TENANT}', 'main', e, e * 100, 'budget',
    CASE WHEN e > 4 THEN json_build_object('folds', json_build_array(json_build_object('id', md5('s' || n)::uuid,
        'shown', true))) ELSE '{{}}'::json END,
    0, '{{}}', '{{}}', 100000, 70000, CASE WHEN e > 4 THEN ARRAY[md5('s' || n)::uuid] ELSE '{{}}' END,
    (SELECT range_agg(int8range(g, g + 3)) FROM generate_series(1, e * 90, 9) g)
FROM numbered, generate_series(1, {CALLS_PER_SESSION // CALLS_PER_EPOCH}) e
"""

# Call n of all, with its session and its place in it. Half the calls evicted nothing, the others up to a million
# tokens, larger amounts being rarer; one in a thousand overflowed; one in fifty thousand is of the rare model.
_CALLS: Final = f"""
INSERT INTO model_calls (session_id, call_id, tenant_id, view, head, epoch, policy_name, policy_version, format, model,
    render_version, manifest, breakpoints, estimate, target, sha256, created_at, counted, evicted_tokens, evicted_class,
    expires_at, reported_at, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, overflow,
    window_tokens, tools_tokens, system_tokens, ephemeral_tokens, breakpoint_tokens, breakpoint_blocks)
SELECT s.session_id,
    (lpad(to_hex((extract(epoch FROM made) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
        || substr(md5(n::text), 4, 15))::uuid,
    '{DEFAULT_TENANT}', 'main', 100 + place * 4, place / {CALLS_PER_EPOCH} + 1, 'default', 1, 'anthropic',
    CASE WHEN n % 50000 = 7 THEN 'rare-model' ELSE ('{{{",".join(MODELS[:5])}}}'::text[])[1 + (n * 7919 / 250) % 5] END,
    1, replace($4, repeat('0', 64), md5(n::text) || md5((-n)::text))::json, ARRAY[1, 40, 80, 120], 90000, 120000,
    sha256(n::text::bytea), made, 90000, evicted, CASE WHEN evicted = 0 THEN 0 ELSE floor(log(2, evicted))::int + 1 END,
    made + interval '90 days', made, 91000, 80000, 9000, 700, n % 1000 = 3,
    200000, 5120, 2048, 12, ARRAY[7168, 50000, 70000, 89988], ARRAY[0, 80, 160, 240]
FROM (
    SELECT n, now() - make_interval(secs => ({DAYS} * 86400.0) * ($3::bigint - n) / $3::bigint) AS made,
        n / ({AT_ONCE} * {CALLS_PER_SESSION}) * {AT_ONCE} + n % {AT_ONCE} AS number,
        n / {AT_ONCE} % {CALLS_PER_SESSION} AS place,
        CASE WHEN n % 2 = 0 THEN 0
            ELSE least(1000000, (500 / (0.0005 + ((n * 7919) % 100003) / 100003.0))::int) END AS evicted
    FROM generate_series($1::bigint, $2::bigint - 1) n
) c JOIN (SELECT n AS number, session_id FROM numbered) s USING (number)
"""
