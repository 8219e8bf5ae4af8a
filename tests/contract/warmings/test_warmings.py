"""Reported warmings of a call's cache: their bill, their row in both ledgers, retries, lines, and tenants' walls."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from app.store.dsn import for_asyncpg
from app.store.engine import Database
from app.tenants import Tenants
from tests.support.backdating import moved_back

pytestmark = pytest.mark.wing("warmings")

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


LONG = [{"role": "user", "content": "word " * 4_000}, {"role": "assistant", "content": "Yes."}]


@pytest.mark.wing("audit")
async def test_the_request_that_keeps_a_cache_is_that_of_the_last_call(client: httpx.AsyncClient) -> None:
    await call_of(client)
    made = await call_of(client, messages=[*LONG, {"role": "user", "content": "Go on."}])
    answer = await client.post("/v1/sessions/s/context:warm", json={})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["request"] == made["request"] | {"max_tokens": 0}
    assert (found["call_id"], found["line"]) == (made["call_id"], made["line"])
    assert {name: found[name] for name in ("tokens", "expires_at")} == {
        name: made["cache"][name] for name in ("tokens", "expires_at")
    }
    assert found["price"] == pytest.approx(0.1 * found["tokens"], abs=0.1)
    assert found["saves"] == pytest.approx(1.15 * found["tokens"], abs=0.1)
    calls = (await client.get("/v1/sessions/s/calls")).json()["items"]
    assert len(calls) == 2, "nothing is recorded as a call"


async def test_without_a_call_whose_cache_can_be_kept_the_reason_is_named(client: httpx.AsyncClient) -> None:
    path = "/v1/sessions/s/context:warm"
    assert (await client.post(path, json={})).status_code == 404
    made = await call_of(client, format="openai", model="gpt-5")
    refused = await client.post(path, json={})
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/nothing-to-send")
    assert "openai" in refused.json()["detail"]
    assert "no call" in (await client.post(path, json={"view": "other"})).json()["detail"]
    made = await call_of(client, messages=LONG)
    assert (await client.post(path, json={})).status_code == 200
    assert (await client.delete(f"/v1/sessions/s/events/{made['head'] - 1}")).status_code < 300
    refused = await client.post(path, json={})
    assert refused.status_code == 422 and "erased" in refused.json()["detail"]


async def test_a_context_that_was_not_sent_has_no_cache_to_keep(client: httpx.AsyncClient) -> None:
    await call_of(client, observe=True, messages=LONG)
    answer = await client.post("/v1/sessions/s/context:warm", json={"view": "~observed"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/nothing-to-send"), answer.text
    assert "was not sent" in answer.json()["detail"]


@pytest.mark.wing("audit")
@pytest.mark.parametrize("warmed", [True, False])
async def test_a_warmed_cache_is_warm_for_the_next_context(
    client: httpx.AsyncClient, database_url: str, *, warmed: bool
) -> None:
    messages = [*LONG, {"role": "user", "content": "Go on."}]
    made = await call_of(client, messages=messages)
    connection = await asyncpg.connect(for_asyncpg(database_url))
    await connection.execute("SET session_replication_role = replica")  # disables the triggers that forbid the change
    await connection.execute("UPDATE model_calls SET " + moved_back("created_at", "interval '10 minutes'"))
    await connection.execute("UPDATE sessions SET version = version + 1")  # the view in memory is read again
    await connection.close()
    if warmed:
        assert (await warm(client, "s", made["call_id"], READ)).status_code == 201
    more = [*messages, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"}]
    later = await call_of(client, messages=more)
    record = (await client.get(f"/v1/sessions/s/calls/{later['call_id']}")).json()
    assert (record["moment"], later["line"]) == ("warm" if warmed else "cold", made["line"])


@pytest.mark.wing("audit")
async def test_a_view_in_memory_is_read_again_after_a_warming(client: httpx.AsyncClient, reads: list[str]) -> None:
    made = await call_of(client, messages=LONG)
    reads.clear()
    await client.get("/v1/sessions/s/context", params={"format": "anthropic"})
    before = len(reads)
    await warm(client, "s", made["call_id"], READ)
    await client.get("/v1/sessions/s/context", params={"format": "anthropic"})
    assert (before, len(reads)) == (0, 1)
