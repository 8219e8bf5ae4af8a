"""The daily token limit of a tenant's summaries: never exceeded, and reported when it is reached."""

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import worker
from app.core.compaction.prompt import Completion, Prompt
from app.providers import ProviderError, Summarizer, expected_tokens
from app.resources.summaries.service import PaidSummarizer
from app.runtime import wiring
from app.runtime.settings import Settings
from app.runtime.wing import find_placement
from app.store import jobs, summaries
from app.store.engine import Database, acting_for
from app.tenants import DEFAULT_TENANT
from tests.conformance.agent import Agent, Json
from tests.contract.summaries.test_summaries import SMALL, append_turns, check_coverage, wait_until_idle
from tests.support.pooler import pooled
from tests.support.summarizers import Summarizers

pytestmark = pytest.mark.usefixtures("fast_retries")

SECONDS_MAX = 60
ASK = Prompt("s" * 300, "p" * 600, 100, 0.2)
COST = expected_tokens(ASK)


class Model:
    """A summarizer with a fixed answer that counts its calls."""

    def __init__(self, answer: Completion | BaseException, gate: asyncio.Event | None = None) -> None:
        self.answer, self.gate, self.calls = answer, gate, 0

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    async def aclose(self) -> None:
        return None


async def summarize_once(summarizer: Summarizer) -> str:
    try:
        await summarizer.summarize(ASK, timeout=1)
    except ProviderError as error:
        return error.kind
    return "ok"


async def account(database: Database) -> tuple[int, int, int]:
    """Return today's tokens spent and reserved, and the number of refused requests."""
    today = await jobs.tokens_today(database)
    return today.spent, today.reserved, today.refused


async def test_two_processes_together_stay_within_the_limit(database_url: str) -> None:
    """Forty concurrent requests from two pools share an account with room for seven."""
    pools = [Database(database_url, pool_size=4, find_placement=find_placement) for _ in range(2)]
    model = Model(Completion("fine", "m", input_tokens=COST - 60, output_tokens=60))
    paid = [PaidSummarizer(pool, DEFAULT_TENANT, COST * 7 + COST // 2, model) for pool in pools]
    try:
        with acting_for(DEFAULT_TENANT):
            results = await asyncio.gather(*(summarize_once(paid[number % 2]) for number in range(40)))
        assert (results.count("ok"), results.count("spent"), model.calls) == (7, 33, 7)
        assert await account(pools[0]) == (COST * 7, 0, 33)
    finally:
        for pool in pools:
            await pool.close()


async def test_requests_in_progress_count_with_their_highest_cost(database: Database) -> None:
    gate = asyncio.Event()
    model = Model(Completion("fine", "m", input_tokens=10, output_tokens=5), gate)
    paid = PaidSummarizer(database, DEFAULT_TENANT, 2 * COST, model)
    running = [asyncio.create_task(summarize_once(paid)) for _ in range(2)]
    async with asyncio.timeout(SECONDS_MAX):
        while model.calls < 2:
            await asyncio.wait(running, timeout=0.01)
    assert await summarize_once(paid) == "spent"
    assert await account(database) == (0, 2 * COST, 1)
    gate.set()
    assert await asyncio.gather(*running) == ["ok", "ok"]
    assert await account(database) == (30, 0, 1)
    assert await summarize_once(paid) == "ok"


@pytest.mark.parametrize(
    ("answer", "charged"),
    [
        (Completion("fine", "m", input_tokens=300, output_tokens=50), (350, 0)),
        (Completion("fine", "m"), (COST, 0)),
        (ProviderError("server", "no"), (0, 0)),
        (ProviderError("timeout", "no"), (COST, 0)),
        (KeyError("a fault"), (0, COST)),
    ],
)
async def test_the_reported_or_else_the_estimated_cost_is_charged(
    database: Database, answer: Completion | Exception, charged: tuple[int, int]
) -> None:
    paid = PaidSummarizer(database, DEFAULT_TENANT, 10 * COST, Model(answer))
    try:
        await paid.summarize(ASK, timeout=1)
    except (ProviderError, KeyError):
        assert isinstance(answer, Exception)
    assert await account(database) == (*charged, 0)


async def test_a_cancelled_request_stays_reserved(database: Database) -> None:
    """Its cost is unknown, as after the death of its process."""
    model = Model(Completion("fine", "m"), asyncio.Event())
    running = asyncio.create_task(summarize_once(PaidSummarizer(database, DEFAULT_TENANT, COST, model)))
    async with asyncio.timeout(SECONDS_MAX):
        while not model.calls:
            await asyncio.wait([running], timeout=0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await account(database) == (0, COST, 0)
    assert await summarize_once(PaidSummarizer(database, DEFAULT_TENANT, COST, Model(Completion("", "")))) == "spent"


async def test_each_tenant_and_each_day_has_its_own_account(database: Database) -> None:
    other = await database.fetchrow(
        "INSERT INTO tenants (tenant_id, name) VALUES (gen_random_uuid(), 'other') RETURNING tenant_id"
    )
    assert other is not None
    model = Model(Completion("fine", "m"))
    ours, theirs = (PaidSummarizer(database, one, COST, model) for one in (DEFAULT_TENANT, other["tenant_id"]))
    assert [await summarize_once(one) for one in (ours, ours, theirs, theirs)] == ["ok", "spent", "ok", "spent"]
    await database.execute("UPDATE provider_spend SET day = day - 1")
    assert [await summarize_once(one) for one in (ours, theirs)] == ["ok", "ok"]
    assert await account(database) == (2 * COST, 0, 0)


async def test_with_a_limit_of_0_no_request_is_made(database: Database) -> None:
    model = Model(Completion("fine", "m"))
    assert await summarize_once(PaidSummarizer(database, DEFAULT_TENANT, 0, model)) == "spent"
    assert model.calls == 0


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {
        "/".join([sample.name.removeprefix("palimpsest_summarizer_"), *sample.labels.values()]): sample.value
        for family in families
        if family.name.startswith("palimpsest_summarizer_")
        for sample in family.samples
    }


async def run_workers(
    database_url: str, database: Database, fake_summarizers: Summarizers, workers: int, **settings: Any
) -> None:
    """Run workers until no job is left."""
    configured = Settings(summarizer="openai", openai_base_url=fake_summarizers.openai_url, **settings)
    stop = asyncio.Event()
    running = [
        asyncio.create_task(worker.run(database_url, stop, wiring.worker_work(pooled(configured, database_url))))
        for _ in range(workers)
    ]
    try:
        await wait_until_idle(database)
    finally:
        stop.set()
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(*running)


async def runs_and_summaries(client: httpx.AsyncClient, sid: str) -> tuple[list[Json], list[Json]]:
    """Return the runs and the live summaries of a session."""
    runs = (await client.get(f"/v1/sessions/{sid}/compactions")).json()["items"]
    live = (await client.get(f"/v1/sessions/{sid}/summaries", params={"live": True})).json()["items"]
    return runs, live


@pytest.mark.wing("telemetry")
async def test_beyond_the_limit_summaries_are_written_without_a_model_and_marked(
    client: httpx.AsyncClient, database_url: str, database: Database, fake_summarizers: Summarizers
) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 12)
    run = (await client.post("/v1/sessions/s/compactions", json={})).json()
    await run_workers(database_url, database, fake_summarizers, 1, summarizer_tokens_per_day=100)
    assert fake_summarizers.requests == []
    runs, live = await runs_and_summaries(client, "s")
    assert [(row["id"], row["state"]) for row in runs] == [(run["id"], "succeeded")]
    assert runs[0]["error"].startswith("openai: the 100 tokens allowed in a day leave no room for about ")
    assert {(row["summarizer"], row["degraded"]) for row in live} == {("extractive", True)}
    found = await metrics(client)
    assert found["requests_refused_today"] >= 1
    assert (found["tokens_today/spent"], found["tokens_today/reserved"]) == (0, 0)
    await agent.context(force=True)
    await check_coverage(client)


async def test_beyond_the_limit_a_policy_may_forbid_summaries_without_a_model(
    client: httpx.AsyncClient, database_url: str, database: Database, fake_summarizers: Summarizers
) -> None:
    agent = await Agent.begin(client, SMALL | {"summarize": {"on_fail": "unchanged"}})
    await append_turns(agent, 12)
    await client.post("/v1/sessions/s/compactions", json={})
    await run_workers(database_url, database, fake_summarizers, 1, summarizer_tokens_per_day=100)
    runs, live = await runs_and_summaries(client, "s")
    assert ([row["state"] for row in runs], live) == (["failed"], [])
    assert "allowed in a day" in runs[0]["error"]


@pytest.mark.wing("telemetry")
async def test_two_workers_together_stay_within_the_limit(
    client: httpx.AsyncClient, database_url: str, database: Database, fake_summarizers: Summarizers
) -> None:
    """Six sessions need summaries, and the limit allows only some of them."""
    allowed = 12_000
    sids = [f"s{number}" for number in range(6)]
    for sid in sids:
        agent = await Agent.begin(client, SMALL, sid)
        await append_turns(agent, 12)
        assert (await client.post(f"/v1/sessions/{sid}/compactions", json={})).status_code == 202
    await run_workers(database_url, database, fake_summarizers, 2, summarizer_tokens_per_day=allowed)
    spent, reserved, refused = await account(database)
    written: list[Json] = []
    for sid in sids:
        runs, live = await runs_and_summaries(client, sid)
        assert {row["state"] for row in runs} == {"succeeded"}, runs
        written += live
    assert {(row["summarizer"], row["degraded"]) for row in written} == {("openai", False), ("extractive", True)}
    assert (reserved, refused > 0) == (0, True)
    assert 0 < spent <= allowed
    found = await metrics(client)
    assert (found["tokens_today/spent"], found["requests_refused_today"]) == (spent, refused)
    # They are written again on another day, not repeatedly on this one.
    assert await summaries.degraded(database, 0.0, 100) == []
    await database.execute("UPDATE provider_spend SET day = day - 1")
    assert len(await summaries.degraded(database, 0.0, 100)) > 0
