"""The ledger over HTTP, with the replay's cache simulation as the provider: expectations, losses, epochs and money."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.core.errors import StoreUnavailable
from app.core.tokens.models import cache_profile
from app.store.engine import Database
from app.tenants import DEFAULT_TENANT, Tenants
from app.wings.ledger import store
from palimpsest_tools.replay.bill import Bill, Cache, charge
from palimpsest_tools.replay.requests import rendered
from tests.contract.contexts.test_context import append, turn_of_rounds

START = datetime(2026, 3, 1, tzinfo=UTC)
PRICED = {"prices": {"input_per_million": 3.0, "output_per_million": 15.0, "currency": "EUR"}}
PATIENT = {"retention": {"keep_last": 5}, "economics": {"factor": 1.5, "least_tokens": 4_000, "at_risk": 1.0}}
"""A policy that evicts rarely and in large steps, so that other cache losses are visible."""
MODELS = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-5"}


class Provider:
    """A provider that counts as the server does and simulates a cache; `bend` may change or suppress its reports."""

    def __init__(self, client: httpx.AsyncClient, format: str, sid: str = "s", **body: object) -> None:
        self.client = client
        self.format = format
        self.sid = sid
        self.body = {"model": MODELS[format], **body}
        self.now = START
        self.caches: dict[str, Cache] = {}
        self.bills: list[Bill] = []
        self.bend: Callable[[Bill], dict[str, Any] | None] = lambda bill: {
            "cache_read_tokens": bill.read_tokens,
            "cache_write_tokens": bill.write_tokens,
        }

    async def call(self, seconds: float = 20.0, **body: object) -> dict[str, Any]:
        """Request a context, charge it and report its usage."""
        self.now += timedelta(seconds=seconds)
        asked = {"format": self.format, "now": self.now.isoformat(), **self.body, **body}
        answer = await self.client.post(f"/v1/sessions/{self.sid}/context", json=asked)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        estimate = made["tokens"]["estimate"]
        request = rendered(made["request"], estimate, self.now.timestamp())
        model = made["model"]
        bill, self.caches[model] = charge(cache_profile(model), self.caches.get(model, Cache()), request)
        self.bills.append(bill)
        caching = self.bend(bill)
        if caching is not None:
            cached = caching.get("cache_read_tokens", 0) + caching.get("cache_write_tokens", 0)
            own = bill.tokens - cached if self.format == "anthropic" else bill.tokens
            usage = {"input_tokens": own, "output_tokens": 100, **caching}
            path = f"/v1/sessions/{self.sid}/calls/{made['call_id']}/outcome"
            reported = await self.client.post(path, json={"usage": usage})
            assert reported.status_code == 200, reported.text
        return made


async def ledger(client: httpx.AsyncClient, sid: str = "s", **params: object) -> dict[str, Any]:
    answer = await client.get(f"/v1/sessions/{sid}/ledger", params=params)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture
async def session(client: httpx.AsyncClient) -> httpx.AsyncClient:
    prompt = {"type": "system.prompt", "content": "Be brief. " + "word " * 2_000}
    await append(client, [prompt])
    return client


async def work(provider: Provider, turns: int, *, first: int = 0, words: int = 300) -> None:
    for turn in range(first, first + turns):
        await append(provider.client, turn_of_rounds(3, first=turn * 3, words=words), provider.sid)
        await provider.call()


@pytest.mark.parametrize("format", MODELS)
async def test_the_expectation_is_within_a_twentieth_of_the_exact_bill(session: httpx.AsyncClient, format: str) -> None:
    """The simulation weighs blocks by length and the server by its estimator, so the figures differ a little."""
    provider = Provider(session, format, max_tokens=14_000, policy=PATIENT)
    await work(provider, 14)
    await provider.call(900)
    await work(provider, 6, first=14)
    made = await ledger(session, limit=1000)
    lines = made["calls"][::-1]
    assert len({line["epoch"] for line in lines}) > 3
    assert any(bill.read_tokens for bill in provider.bills)
    for line, bill in zip(lines, provider.bills, strict=True):
        expected = line["expected"]
        assert expected["tokens"] == bill.tokens == line["reported"]["input_tokens"]
        assert expected["read_tokens"] == pytest.approx(bill.read_tokens, abs=max(256, 0.05 * bill.tokens)), line
        assert line["cause"] in (None, "epoch", "time_to_live"), line
    totals = made["totals"]
    billed = sum(bill.billed for bill in provider.bills)
    assert totals["input"]["billed"] == pytest.approx(billed, rel=0.001)
    assert totals["expected"]["billed"] == pytest.approx(billed, rel=0.05)
    assert (totals["calls"], totals["unreported_calls"]) == (21, 0)
    assert totals["output_tokens"] == 2_100


async def test_a_ledger_of_the_newest_calls_is_partial(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "anthropic")
    for _ in range(4):
        await append(session, turn_of_rounds(1))
        await provider.call()
    every, newest = await ledger(session), await ledger(session, newest=2)
    assert (newest["totals"]["calls"], newest["totals"]["partial"]) == (2, True)
    assert [call["call_id"] for call in newest["calls"]] == [call["call_id"] for call in every["calls"][:2]]
    assert (every["totals"]["calls"], every["totals"]["partial"]) == (4, False)


async def test_every_loss_has_its_cause(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "anthropic", max_tokens=60_000, policy=PATIENT)
    await work(provider, 4)
    await provider.call(400)
    await append(session, [{"type": "system.prompt", "content": "Be briefer. " + "word " * 2_000}])
    await provider.call()
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    await append(session, [{"type": "tools", "content": tools}])
    await provider.call()
    await provider.call(max_tokens=9_000)
    await provider.call(max_tokens=9_000, model="claude-opus-4-5", format="anthropic")
    made = await ledger(session)
    said = [(line["cause"], line["epoch_cause"]) for line in made["calls"][:5][::-1]]
    assert said == [
        ("time_to_live", None),
        ("system_prompt", "system_prompt"),
        ("tools", "tools"),
        ("epoch", "window"),
        ("model", None),
    ]
    seqs = [line["diverges_at"] for line in made["calls"][:5][::-1]]
    head = (await session.get("/v1/sessions/s")).json()["head"]
    assert seqs[:3] == [1, head - 1, head]
    assert all(line["missed_tokens"] > 0 for line in made["calls"][:5])
    assert all(line["missed_tokens"] == 0 for line in made["calls"][5:8])


async def test_losses_the_record_does_not_explain_are_the_providers(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "anthropic", max_tokens=60_000)
    await work(provider, 3)
    provider.bend = lambda bill: {"cache_read_tokens": 0, "cache_write_tokens": bill.read_tokens + bill.write_tokens}
    lost = await provider.call()
    provider.bend = lambda bill: {}
    await provider.call()
    provider.bend = lambda bill: {"cache_read_tokens": bill.tokens, "cache_write_tokens": 0}
    await provider.call(1_000)
    elsewhere, silent, gone, *_ = (await ledger(session))["calls"]
    assert (elsewhere["cause"], silent["cause"], gone["cause"]) == ("elsewhere", "not_reported", "provider")
    assert gone["reported"]["read_tokens"] == 0 < gone["expected"]["read_tokens"]
    assert (gone["call_id"], gone["diverges_at"]) == (lost["call_id"], 1)
    assert gone["billed"] > gone["reported"]["write_tokens"]


async def test_epochs_list_their_costs_and_savings_in_tokens_and_money(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "anthropic", max_tokens=12_000, policy={**PRICED, "retention": {"keep_last": 2}})
    await work(provider, 12, words=400)
    made = await ledger(session, limit=1000)
    evicted = [one for one in made["epochs"] if one["cause"] == "budget"]
    assert evicted
    assert any(one["rewritten_tokens"] > 0 for one in evicted)
    for one in evicted:
        assert one["removed_tokens"] > 0
        assert one["cost"] == pytest.approx(one["rewritten_tokens"] * 1.15, abs=0.1)
        assert one["net"] == pytest.approx(one["gain"] - one["cost"], abs=0.11)
        assert one["money"]["currency"] == "EUR"
        assert one["money"]["net"] == pytest.approx(one["net"] * 3e-6, abs=1e-5)
    first, last = evicted[0], evicted[-1]
    assert first["calls_since"] > last["calls_since"] >= last["calls"]
    totals = made["totals"]
    assert totals["append_only"]["tokens"] > totals["input"]["tokens"]
    assert totals["append_only"]["calls_beyond_window"] > 0
    assert totals["saved"] == pytest.approx(totals["append_only"]["billed"] - totals["input"]["billed"], abs=0.2)
    (money,) = totals["money"]
    output = totals["output_tokens"] * 15e-6
    assert money["billed"] == pytest.approx(totals["input"]["billed"] * 3e-6 + output, abs=1e-5)
    assert sum(line["money"] for line in made["calls"]) == pytest.approx(money["billed"], abs=1e-4)


async def test_pages_are_contiguous_and_have_equal_totals(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "openai")
    await work(provider, 5)
    whole = await ledger(session)
    pages, cursor = [], None
    while True:
        page = await ledger(session, limit=2, **({"cursor": cursor} if cursor else {}))
        assert page["totals"] == whole["totals"]
        pages += page["calls"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == whole["calls"]
    assert [line["created_at"] for line in pages] == sorted((line["created_at"] for line in pages), reverse=True)


async def test_an_exactly_full_last_page_has_no_cursor_and_times_are_in_utc(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "openai")
    await append(session, turn_of_rounds(1))
    for _ in range(2):
        await provider.call()
    page = (await session.get("/v1/sessions/s/ledger", params={"limit": 2})).json()
    assert (len(page["calls"]), page["next_cursor"]) == (2, None)
    assert all(call["created_at"].endswith("Z") for call in page["calls"])
    sums = await session.get("/v1/audit/ledger", params={"since": "2026-01-01T00:00:00+01:00"})
    assert (sums.json()["since"], sums.json()["until"][-1]) == ("2025-12-31T23:00:00Z", "Z")


async def test_unreported_calls_count_as_expected_and_failed_ones_not_at_all(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "anthropic")
    provider.bend = lambda bill: None
    await work(provider, 3)
    failed = (await provider.call())["call_id"]
    error = {"error": {"status": 529, "message": "overloaded"}}
    assert (await session.post(f"/v1/sessions/s/calls/{failed}/outcome", json=error)).status_code == 200
    made = await ledger(session)
    assert [line["failed"] for line in made["calls"]] == [True, False, False, False]
    assert made["calls"][0]["billed"] == 0
    totals = made["totals"]
    assert (totals["calls"], totals["unreported_calls"], totals["failed_calls"]) == (4, 3, 1)
    assert totals["input"]["billed"] == pytest.approx(sum(bill.billed for bill in provider.bills[:3]), rel=0.05)
    assert totals["money"] == []


async def test_each_view_has_its_own_ledger_and_unknown_ones_are_empty(session: httpx.AsyncClient) -> None:
    provider = Provider(session, "openai")
    await work(provider, 2)
    await provider.call(view="titles", max_tokens=5_000)
    assert len((await ledger(session))["calls"]) == 2
    assert len((await ledger(session, view="titles"))["calls"]) == 1
    empty = await ledger(session, view="none")
    assert (empty["calls"], empty["epochs"], empty["totals"]["calls"], empty["next_cursor"]) == ([], [], 0, None)
    missing = await session.get("/v1/sessions/none/ledger")
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/not-found")
    for bad in ({"limit": 0}, {"cursor": "nonsense"}, {"view": "a b"}, {"newest": 0}, {"newest": 5_001}):
        assert (await session.get("/v1/sessions/s/ledger", params=bad)).json()["type"] == "/problems/invalid-request"


async def test_a_record_without_breakpoint_positions_has_an_expectation(
    session: httpx.AsyncClient, database: Database
) -> None:
    """Records of an earlier version have no breakpoint positions."""
    provider = Provider(session, "anthropic")
    await work(provider, 3)
    before = await ledger(session)
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute("UPDATE model_calls SET breakpoint_tokens = NULL, breakpoint_blocks = NULL, counted = NULL")
    after = await ledger(session)
    for one, other in zip(before["calls"], after["calls"], strict=True):
        assert one["expected"]["read_tokens"] == pytest.approx(other["expected"]["read_tokens"], abs=256)
        assert (one["cause"], other["cause"]) == (None, None)


@pytest.fixture
async def two_sessions(client: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """Two sessions with two models."""
    for sid, format in (("one", "anthropic"), ("two", "openai")):
        provider = Provider(client, format, sid, policy=PRICED if sid == "one" else "default")
        await work(provider, 2)
        provider.bend = lambda bill: None
        await provider.call()
    yield client


async def test_a_tenants_sums_by_model(two_sessions: httpx.AsyncClient) -> None:
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    made = (await two_sessions.get("/v1/audit/ledger", params={"since": since})).json()
    assert [(row["model"], row["calls"], row["reported_calls"]) for row in made["items"]] == [
        ("claude-sonnet-4-5", 3, 2),
        ("gpt-5", 3, 2),
    ]
    ledgers = [await ledger(two_sessions, sid) for sid in ("one", "two")]
    for row, own in zip(made["items"], ledgers, strict=True):
        reported = [line for line in own["calls"] if line["reported"]]
        assert row["input_tokens"] == sum(line["reported"]["input_tokens"] for line in reported)
        assert row["read_tokens"] == sum(line["reported"]["read_tokens"] for line in reported)
        assert row["billed"] == pytest.approx(sum(line["billed"] for line in reported), abs=0.5)
        assert row["unreported_tokens"] == own["calls"][0]["estimate"]
    assert [row["money"] != [] for row in made["items"]] == [True, False]
    assert made["totals"]["calls"] == 6
    one = (await two_sessions.get("/v1/audit/ledger", params={"since": since, "model": "gpt-5"})).json()
    assert one["items"] == made["items"][1:]
    later = (await two_sessions.get("/v1/audit/ledger", params={"since": "2031-01-01"})).json()
    assert (later["items"], later["totals"]["calls"]) == ([], 0)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"since": "yesterday"},
        {"since": "2026-01-01", "until": "2026-02-02"},
        {"since": "2026-01-02", "until": "2026-01-01"},
        {"since": "9999-12-31T23:00:00Z"},
        {"since": "2026-01-01", "until": "2026-01-02", "model": ""},
    ],
)
async def test_a_range_is_required_and_bounded(client: httpx.AsyncClient, params: dict[str, str]) -> None:
    answer = await client.get("/v1/audit/ledger", params=params)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")


async def test_ledgers_require_their_scope_and_tenant(two_sessions: httpx.AsyncClient, database: Database) -> None:
    tenants = Tenants(database, None)
    reader = {"Authorization": f"Bearer {(await tenants.create_key('default', 'r', ['read'])).secret}"}
    auditor = {"Authorization": f"Bearer {(await tenants.create_key('default', 'a', ['audit'])).secret}"}
    other = {"Authorization": f"Bearer {(await tenants.create_key('other', 'o', ['admin'])).secret}"}
    since = {"since": (datetime.now(UTC) - timedelta(hours=1)).isoformat()}

    async def status(path: str, headers: dict[str, str]) -> int:
        return (await two_sessions.get(path, headers=headers, params=since if "audit" in path else {})).status_code

    ours, all_sessions = "/v1/sessions/one/ledger", "/v1/audit/ledger"
    assert [await status(ours, who) for who in (reader, auditor, other)] == [200, 403, 404]
    assert [await status(all_sessions, who) for who in (reader, auditor, other)] == [403, 200, 200]
    theirs = (await two_sessions.get(all_sessions, headers=other, params=since)).json()
    assert theirs["totals"]["calls"] == 0


async def test_the_sums_of_a_range_are_found_by_index(database: Database) -> None:
    """One day of a tenant is read from a year of calls of many tenants."""
    await database.execute(
        "INSERT INTO model_calls (session_id, tenant_id, call_id, view, head, epoch, policy_name, policy_version,"
        " format, model, render_version, manifest, breakpoints, estimate, target, sha256, created_at)"
        " SELECT gen_random_uuid(), CASE WHEN n % 3 = 0 THEN gen_random_uuid() ELSE :tenant END, gen_random_uuid(),"
        " 'main', 1, 1, 'default', 1, 'openai', 'model-' || n % 20, 1, '{}', '{}', 1000, 2000, '', "
        " timestamptz '2026-01-01' + n * interval '15 minutes' FROM generate_series(1, 30000) n",
        tenant=DEFAULT_TENANT,
    )
    await database.execute("ANALYZE model_calls")
    day = (DEFAULT_TENANT, datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 6, 2, tzinfo=UTC))
    asked = dict(zip(("tenant_id", "since", "until"), day, strict=True))
    for sql, values, index in (
        (store.SUMS, asked, "model_calls_listed_idx"),
        (store.SUMS_OF_MODEL, asked | {"model": "model-7"}, "model_calls_model_idx"),
    ):
        rows = await database.fetch("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + sql, **values)
        plan = "\n".join(row[0] for row in rows)
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "Rows Removed by Filter" not in plan, plan
    assert sum(row.calls for row in await store.sums(database, store.LedgerRange(*day))) == 64


@pytest.mark.wing("audit")
async def test_a_report_is_answered_though_its_cache_reads_cannot_be_compared(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> None:
        raise StoreUnavailable("the connection was lost after the report was stored")

    monkeypatch.setattr(store, "calls", unavailable)
    await append(client, [{"type": "user.message", "content": "Hello"}])
    context = (await client.get("/v1/sessions/s/context")).json()
    usage = {"input_tokens": 100, "cache_read_tokens": 50}
    outcome = await client.post(f"/v1/sessions/s/calls/{context['call_id']}/outcome", json={"usage": usage})
    assert outcome.status_code == 200
    call = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}")).json()
    assert call["outcome"]["usage"]["input_tokens"] == 100
