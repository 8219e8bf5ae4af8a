"""Reported warmings of a call's cache: their bill, their row in both ledgers, retries, lines, and tenants' walls."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.services.tenants import Tenants
from app.store.engine import Database

READ = {"usage": {"input_tokens": 4, "cache_read_tokens": 10_000, "cache_write_tokens": 0}}
PRICED = {"prices": {"input_per_million": 3.0, "output_per_million": 15.0, "currency": "EUR"}}


async def call_of(client: httpx.AsyncClient, sid: str = "s", **body: Any) -> dict[str, Any]:
    await client.put(f"/v1/sessions/{sid}", json={"policy": PRICED})
    messages = [{"role": "user", "content": "hello"}]
    asked = {"messages": messages, "format": "anthropic", "model": "claude-sonnet-4-5", **body}
    answer = await client.post(f"/v1/sessions/{sid}/context", json=asked)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def warm(
    client: httpx.AsyncClient, sid: str, call_id: str, report: Any, key: str | None = None
) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post(f"/v1/sessions/{sid}/calls/{call_id}/warmings", json=report, headers=headers)


@pytest.mark.wing("ledger")
async def test_warmings_are_a_row_of_their_own_in_both_ledgers(client: httpx.AsyncClient) -> None:
    made = await call_of(client)
    answer = await warm(client, "s", made["call_id"], READ)
    assert answer.status_code == 201
    assert answer.json() == {"input_tokens": 10_004, "read_tokens": 10_000, "write_tokens": 0, "billed": 1_004.0}
    assert (await warm(client, "s", made["call_id"], {})).json()["billed"] == 0
    expected = {
        **{"warmings": 2, "failed": 1, "input_tokens": 10_004, "read_tokens": 10_000, "write_tokens": 0},
        **{"billed": 1_004.0, "money": [{"currency": "EUR", "billed": 0.003012}]},
    }
    ledger = (await client.get("/v1/sessions/s/ledger")).json()
    assert ledger["warmings"] == expected
    assert (ledger["totals"]["calls"], ledger["totals"]["unreported_calls"]) == (1, 1)
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for params in ({}, {"model": "claude-sonnet-4-5"}):
        audit = (await client.get("/v1/audit/ledger", params={"since": since, **params})).json()
        assert (audit["warmings"], audit["totals"]["input_tokens"]) == (expected, 0)
    for params in ({"model": "gpt-5"}, {"until": since}):
        audit = (await client.get("/v1/audit/ledger", params={"since": since, **params})).json()
        assert audit["warmings"]["warmings"] == 0
    other = (await client.get("/v1/sessions/s/ledger", params={"view": "other"})).json()
    assert other["warmings"]["warmings"] == 0


async def test_a_format_that_counts_cached_tokens_with_the_others(client: httpx.AsyncClient) -> None:
    made = await call_of(client, format="openai", model="gpt-5")
    report = {"usage": {"input_tokens": 10_004, "cache_read_tokens": 10_000}}
    answer = (await warm(client, "s", made["call_id"], report)).json()
    assert (answer["input_tokens"], answer["billed"]) == (10_004, 1_004.0)


async def test_a_repeated_report_is_recorded_once(client: httpx.AsyncClient, database: Database) -> None:
    made = await call_of(client)
    first = await warm(client, "s", made["call_id"], READ, key="k")
    await database.execute("DELETE FROM appends WHERE key = 'k'")  # as if the process had ended before storing it
    again = await warm(client, "s", made["call_id"], READ, key="k")
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert len(await database.fetch("SELECT FROM warmings")) == 1


async def test_a_call_on_a_further_line_is_found_by_the_sessions_name(
    client: httpx.AsyncClient, database: Database
) -> None:
    await call_of(client)
    made = await call_of(client, messages=[{"role": "user", "content": "something else"}])
    assert made["line"] is not None
    assert (await warm(client, "s", made["call_id"], READ)).status_code == 201
    [row] = await database.fetch("SELECT external_id FROM warmings JOIN sessions USING (session_id)")
    assert row["external_id"] == made["line"]


@pytest.mark.wing("ledger")
async def test_a_key_for_some_sessions_sees_their_warmings(client: httpx.AsyncClient, database: Database) -> None:
    for sid in ("s", "ann-1", "ann-2"):
        await warm(client, sid, (await call_of(client, sid))["call_id"], READ)
    tenants, since = Tenants(database, None), (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    key = await tenants.create_key("default", "k", ["audit"], session_prefix="ann-")
    client.headers["Authorization"] = f"Bearer {key.secret}"
    audit = (await client.get("/v1/audit/ledger", params={"since": since})).json()
    assert audit["warmings"]["warmings"] == 2


async def test_nobody_warms_an_unknown_call_or_another_tenants(client: httpx.AsyncClient, database: Database) -> None:
    made = await call_of(client)
    unknown = "00000000-0000-7000-8000-000000000000"
    assert (await warm(client, "s", unknown, READ)).status_code == 404
    assert (await warm(client, "nobody", made["call_id"], READ)).status_code == 404
    tenants = Tenants(database, None)
    ours, theirs = [await tenants.create_key(name, "k", ["ingest"]) for name in ("default", "other")]
    client.headers["Authorization"] = f"Bearer {theirs.secret}"
    assert (await warm(client, "s", made["call_id"], READ)).status_code == 404
    assert await database.fetch("SELECT FROM warmings") == []
    client.headers["Authorization"] = f"Bearer {ours.secret}"
    assert (await warm(client, "s", made["call_id"], READ)).status_code == 201
