"""What a tenant's summaries may cost in a day, whoever writes them: never more, and what happens then is told."""

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import wiring
from app.core.compaction.prompt import Completion, Prompt
from app.providers.guard import expected_tokens
from app.providers.summarizer import ProviderError, Summarizer
from app.services.spending import Spending
from app.services.tenants import DEFAULT_TENANT
from app.settings import Settings
from app.store import spending, summaries
from app.store.engine import Database, acting_for
from app.worker import run as worker
from tests.conformance.agent import Agent, Json
from tests.contract.test_summaries import SMALL, idle, proven, talk
from tests.support.pooler import pooled
from tests.support.summarizers import Summarizers

pytestmark = pytest.mark.usefixtures("impatient")

SECONDS_MAX = 60
ASK = Prompt("s" * 300, "p" * 600, 100, 0.2)
COST = expected_tokens(ASK)


class Model:
    """A summarizer that costs what it is told to, and counts how often it is asked."""

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


async def asked(summarizer: Summarizer) -> str:
    try:
        await summarizer.summarize(ASK, timeout=1)
    except ProviderError as error:
        return error.kind
    return "ok"


async def account(database: Database) -> tuple[int, int, int]:
    """What is spent, reserved and refused today."""
    today = await spending.today(database)
    return today.spent, today.reserved, today.refused


async def test_two_processes_spend_no_more_than_one_might(database_url: str) -> None:
    """Forty requests at once, by two pools, for one account in which there is room for seven."""
    pools = [Database(database_url, pool_size=4) for _ in range(2)]
    model = Model(Completion("fine", "m", input_tokens=COST - 60, output_tokens=60))
    paid = [Spending(pool, COST * 7 + COST // 2).paid_by(DEFAULT_TENANT, model) for pool in pools]
    try:
        with acting_for(DEFAULT_TENANT):
            came = await asyncio.gather(*(asked(paid[number % 2]) for number in range(40)))
        assert (came.count("ok"), came.count("spent"), model.calls) == (7, 33, 7)
        assert await account(pools[0]) == (COST * 7, 0, 33)
    finally:
        for pool in pools:
            await pool.close()


async def test_what_is_under_way_counts_as_much_as_it_may_cost(database: Database) -> None:
    gate = asyncio.Event()
    model = Model(Completion("fine", "m", input_tokens=10, output_tokens=5), gate)
    paid = Spending(database, 2 * COST).paid_by(DEFAULT_TENANT, model)
    running = [asyncio.create_task(asked(paid)) for _ in range(2)]
    async with asyncio.timeout(SECONDS_MAX):
        while model.calls < 2:
            await asyncio.wait(running, timeout=0.01)
    assert await asked(paid) == "spent"
    assert await account(database) == (0, 2 * COST, 1)
    gate.set()
    assert await asyncio.gather(*running) == ["ok", "ok"]
    assert await account(database) == (30, 0, 1)
    assert await asked(paid) == "ok"


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
async def test_what_is_charged(database: Database, answer: Completion | Exception, charged: tuple[int, int]) -> None:
    paid = Spending(database, 10 * COST).paid_by(DEFAULT_TENANT, Model(answer))
    try:
        await paid.summarize(ASK, timeout=1)
    except (ProviderError, KeyError):
        assert isinstance(answer, Exception)
    assert await account(database) == (*charged, 0)


async def test_a_request_given_up_stays_reserved(database: Database) -> None:
    """As one does whose process has died: nobody knows what it cost."""
    model = Model(Completion("fine", "m"), asyncio.Event())
    running = asyncio.create_task(asked(Spending(database, COST).paid_by(DEFAULT_TENANT, model)))
    async with asyncio.timeout(SECONDS_MAX):
        while not model.calls:
            await asyncio.wait([running], timeout=0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await account(database) == (0, COST, 0)
    assert await asked(Spending(database, COST).paid_by(DEFAULT_TENANT, Model(Completion("", "")))) == "spent"


async def test_each_tenant_and_each_day_has_its_own_account(database: Database) -> None:
    other = await database.fetchrow(
        "INSERT INTO tenants (tenant_id, name) VALUES (gen_random_uuid(), 'other') RETURNING tenant_id"
    )
    assert other is not None
    model = Model(Completion("fine", "m"))
    ours, theirs = (Spending(database, COST).paid_by(one, model) for one in (DEFAULT_TENANT, other["tenant_id"]))
    assert [await asked(one) for one in (ours, ours, theirs, theirs)] == ["ok", "spent", "ok", "spent"]
    await database.execute("UPDATE provider_spend SET day = day - 1")
    assert [await asked(one) for one in (ours, theirs)] == ["ok", "ok"]
    assert await account(database) == (2 * COST, 0, 0)


async def test_nothing_is_asked_where_nothing_may_be_spent(database: Database) -> None:
    model = Model(Completion("fine", "m"))
    assert await asked(Spending(database, 0).paid_by(DEFAULT_TENANT, model)) == "spent"
    assert model.calls == 0


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    return {
        "/".join([sample.name.removeprefix("palimpsest_summarizer_"), *sample.labels.values()]): sample.value
        for family in families
        if family.name.startswith("palimpsest_summarizer_")
        for sample in family.samples
    }


async def worked(database_url: str, database: Database, stand_in: Summarizers, workers: int, **settings: Any) -> None:
    """Have several workers do all there is to do."""
    told = Settings(summarizer="openai", openai_base_url=stand_in.openai_url, **settings)
    stop = asyncio.Event()
    running = [
        asyncio.create_task(worker.run(database_url, stop, wiring.work(pooled(told, database_url))))
        for _ in range(workers)
    ]
    try:
        await idle(database)
    finally:
        stop.set()
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(*running)


async def summarized(client: httpx.AsyncClient, sid: str) -> tuple[list[Json], list[Json]]:
    """The runs of a session and its summaries."""
    runs = (await client.get(f"/v1/sessions/{sid}/compactions")).json()["items"]
    live = (await client.get(f"/v1/sessions/{sid}/summaries", params={"live": True})).json()["items"]
    return runs, live


async def test_beyond_the_limit_summaries_are_written_without_a_model_and_say_so(
    client: httpx.AsyncClient, database_url: str, database: Database, stand_in: Summarizers
) -> None:
    agent = await Agent.begin(client, SMALL)
    await talk(agent, 12)
    run = (await client.post("/v1/sessions/s/compactions", json={})).json()
    await worked(database_url, database, stand_in, 1, summarizer_tokens_per_day=100)
    assert stand_in.requests == []
    runs, live = await summarized(client, "s")
    assert [(row["id"], row["state"]) for row in runs] == [(run["id"], "succeeded")]
    assert runs[0]["error"].startswith("openai: the 100 tokens allowed in a day leave no room for about ")
    assert {(row["summarizer"], row["degraded"]) for row in live} == {("extractive", True)}
    found = await metrics(client)
    assert found["requests_refused_today"] >= 1
    assert (found["tokens_today/spent"], found["tokens_today/reserved"]) == (0, 0)
    await agent.context(force=True)
    await proven(client)


async def test_where_the_policy_says_so_there_is_no_summary_then(
    client: httpx.AsyncClient, database_url: str, database: Database, stand_in: Summarizers
) -> None:
    agent = await Agent.begin(client, SMALL | {"summarize": {"on_fail": "unchanged"}})
    await talk(agent, 12)
    await client.post("/v1/sessions/s/compactions", json={})
    await worked(database_url, database, stand_in, 1, summarizer_tokens_per_day=100)
    runs, live = await summarized(client, "s")
    assert ([row["state"] for row in runs], live) == (["failed"], [])
    assert "allowed in a day" in runs[0]["error"]


async def test_two_workers_together_stay_within_the_limit(
    client: httpx.AsyncClient, database_url: str, database: Database, stand_in: Summarizers
) -> None:
    """Six sessions have something to summarize, and there is room for the summaries of some."""
    allowed = 12_000
    sids = [f"s{number}" for number in range(6)]
    for sid in sids:
        agent = await Agent.begin(client, SMALL, sid)
        await talk(agent, 12)
        assert (await client.post(f"/v1/sessions/{sid}/compactions", json={})).status_code == 202
    await worked(database_url, database, stand_in, 2, summarizer_tokens_per_day=allowed)
    spent, reserved, refused = await account(database)
    written: list[Json] = []
    for sid in sids:
        runs, live = await summarized(client, sid)
        assert {row["state"] for row in runs} == {"succeeded"}, runs
        written += live
    assert {(row["summarizer"], row["degraded"]) for row in written} == {("openai", False), ("extractive", True)}
    assert (reserved, refused > 0) == (0, True)
    assert 0 < spent <= allowed
    found = await metrics(client)
    assert (found["tokens_today/spent"], found["requests_refused_today"]) == (spent, refused)
    # They are written anew on another day, not again and again on this one.
    assert await summaries.degraded(database, 0.0, 100) == []
    await database.execute("UPDATE provider_spend SET day = day - 1")
    assert len(await summaries.degraded(database, 0.0, 100)) > 0
