"""Every combination of the audit query's filters reads a bounded part of the records, by index."""

import itertools
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from app.store.driver import bind
from app.store.dsn import for_asyncpg
from app.store.engine import Database, acting_for
from app.store.ids import SessionRef, session_key
from app.tenants import DEFAULT_TENANT
from app.wings.audit import search as calls_search
from app.wings.audit.search import Filters
from bench.audit.fill import CALLS_PER_SESSION, fill
from tests.support.databases import migrated

CALLS = 40_000
SCAN = 400
PAGE = 20
STATEMENT_BYTES_MAX = 15_000
"""Maximum size of a statement that the driver prepares."""

SESSIONS = (None, *([session_key(DEFAULT_TENANT, f"bench-{n}") for n in range(7, 7 + lines)] for lines in (1, 3)))
MODELS = (None, "gpt-5", "rare-model")
DAYS = (None, datetime.now(UTC) - timedelta(days=30))
OVERFLOW = (None, True, False)
LEAST = (0, 5_000, 900_000)
BEFORE = (None, (datetime.now(UTC) - timedelta(days=29.5), UUID(int=2**127)))


@pytest.fixture(scope="module")
async def records(postgres: str, template: str) -> AsyncIterator[str]:
    """Return the name of a database with CALLS records."""
    async with migrated(postgres, template) as url:
        connection = await asyncpg.connect(for_asyncpg(url))
        await fill(connection, CALLS)
        await connection.close()
        yield str(make_url(url).database)


@pytest.fixture
async def database_url(postgres: str, records: str) -> AsyncIterator[str]:
    """Return a copy of the database for each test."""
    async with migrated(postgres, records) as url:
        yield url


@pytest.fixture
async def filled(application: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(calls_search, "SCAN_MAX", SCAN)
    yield application


async def explain(database: Database, sql: str, **values: object) -> dict[str, Any]:
    """Return the generic plan that the server uses for a prepared statement."""
    with acting_for(DEFAULT_TENANT):
        return await _explain(database, *bind(sql, values))


async def _explain(database: Database, sql: str, *args: object) -> dict[str, Any]:
    async with database.transaction() as tx:
        await tx.execute(f"PREPARE asked AS {sql}")
        row = await tx.fetchrow(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked({', '.join(map(literal, args))})"
        )
        await tx.execute("DEALLOCATE asked")
    assert row is not None
    plan: dict[str, Any] = json.loads(row[0])[0]["Plan"]
    return plan


def literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"'{{{','.join(map(str, value))}}}'"
    return str(value) if isinstance(value, int) else f"'{value}'"


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in nodes(child))]


def check(plan: dict[str, Any], rows_max: int) -> None:
    """Assert that calls are read by index, at most `rows_max` of them, and that nothing but a few rows is sorted."""
    reads = [node for node in nodes(plan) if node.get("Relation Name") == "model_calls"]
    assert reads
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan"}, plan
    seen = sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in reads)
    assert seen <= rows_max, plan
    for node in reads:  # of two upper bounds a scan would begin at the first
        assert node["Index Cond"].count("<") <= 1 or "call_id <=" in node["Index Cond"], node
    for node in nodes(plan):
        if node["Node Type"] == "Sort":
            assert node["Actual Rows"] <= 2 * rows_max, node


async def test_no_combination_of_filters_looks_at_more_than_its_bound(filled: Database) -> None:
    for session, model, since, overflow, least, before in itertools.product(
        SESSIONS, MODELS, DAYS, OVERFLOW, LEAST, BEFORE
    ):
        until = since + timedelta(days=1) if since else None
        filters = Filters(
            session_ids=session,
            model=model,
            since=since,
            until=until,
            overflow=overflow,
            min_evicted_tokens=least,
            before=before,
        )
        sql, values = calls_search.statement(DEFAULT_TENANT, filters, PAGE)
        assert len(sql) < STATEMENT_BYTES_MAX
        bound = CALLS_PER_SESSION * len(session) if session else SCAN + calls_search.CLASSES_MAX
        check(await explain(filled, sql, **values), bound)
        sql, values = calls_search.scan_end(DEFAULT_TENANT, filters)
        check(await explain(filled, sql, **values), bound)


async def test_epochs_are_found_by_index(filled: Database) -> None:
    with acting_for(DEFAULT_TENANT):
        await _check_epochs(filled)


async def _check_epochs(filled: Database) -> None:
    row = await filled.fetchrow("SELECT id, session_id FROM summaries LIMIT 1")
    assert row is not None
    tenant = {"tenant_id": DEFAULT_TENANT}
    for sql, values in (
        (calls_search.SHOWING, tenant | {"summary_id": row["id"], "session_id": None}),
        (calls_search.EVICTING, tenant | {"session_id": row["session_id"], "seq": 100}),
    ):
        plan = await explain(filled, sql, **values)
        reads = [node for node in nodes(plan) if "Relation Name" in node]
        assert {node["Node Type"] for node in reads} <= {"Index Scan", "Bitmap Heap Scan"}, plan
        assert all(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 20 for node in reads), plan
    home, epochs = await calls_search.epochs_showing(filled, DEFAULT_TENANT, row["id"], None)
    assert home == row["session_id"]
    assert [number for _, number in sorted(epochs)] == [5, 6, 7, 8, 9, 10]
    assert len(await calls_search.epochs_evicting(filled, SessionRef(row["session_id"], DEFAULT_TENANT), 100)) == 9
    views, numbers = [view for view, _ in epochs], [number for _, number in epochs]
    plan = await explain(
        filled, calls_search.NEWEST_OF, session_id=home, views=views, numbers=numbers, before=calls_search.LAST
    )
    check(plan, len(epochs))
    rows, after = await calls_search.page(filled, DEFAULT_TENANT, Filters(session_ids=[home], epochs=epochs), 1_000)
    assert (len(rows), after) == (150, None)


async def test_expired_records_are_found_by_index(filled: Database, database: Database) -> None:
    """Statements within the function are not in its plan, so the test uses the server's counters."""
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")  # records are immutable
        await tx.execute(
            "UPDATE model_calls SET expires_at = now() - interval '1 hour' WHERE call_id IN "
            "(SELECT call_id FROM model_calls ORDER BY call_id LIMIT 500)"
        )
    async with filled.transaction() as tx:
        gone = await tx.fetchrow("SELECT palimpsest_across_purge('calls', 100) AS number")
        read = await tx.fetchrow(
            "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'model_calls'"
        )
    assert gone is not None and read is not None
    assert (gone["number"], read["seq_scan"]) == (100, 0)
    assert 100 <= read["idx_tup_fetch"] <= 300
