"""S0.2, S4.16: a requested compaction shows in the next context, or the response says why it does not."""

import asyncio

import asyncpg
import httpx
import pytest

from app.core.policy.policy import PRESETS
from app.store.dsn import for_asyncpg
from tests.conformance.agent import WAIT_MS, Agent, Json, evicted_seqs
from tests.conformance.conftest import check_coverage, compact, preset, runs
from tests.support.queue import worker_queue
from tests.support.summarizers import Summarizers, empty
from tests.support.waiting import count_waiting

TEXT = "word " * 80
WINDOW = 12_000
MESSAGES = dict.fromkeys(PRESETS, 60) | {"timeline": 108}
"""Enough messages that some are older than the preset keeps, but too few to exceed its trigger."""


async def begin_session(client: httpx.AsyncClient, policy: str | Json, messages: int = 60) -> Agent:
    agent = await Agent.begin(client, policy, max_tokens=WINDOW)
    await talk(agent, messages)
    return agent


async def talk(agent: Agent, messages: int) -> None:
    await agent.post(
        *(
            {"type": "assistant.message" if n % 2 else "user.message", "content": f"message-{n}. {TEXT}"}
            for n in range(messages)
        )
    )


def is_folded(before: Json, after: Json) -> bool:
    """Return whether `after` has summaries in place of the older events that `before` shows whole."""
    summarized = evicted_seqs(after, "summarized")
    smaller = after["tokens"]["estimate"] < before["tokens"]["estimate"]
    return bool(not before["summaries"] and after["summaries"] and smaller and 1 in summarized)


@pytest.mark.parametrize("policy", list(PRESETS))
async def test_s0_02_a_requested_compaction_shows_in_the_next_context(
    client: httpx.AsyncClient, worker: None, policy: str
) -> None:
    agent = await begin_session(client, policy, MESSAGES[policy])
    before = await agent.context()
    assert (before["evictions"], before["summaries"]) == ([], [])
    assert (await compact(client))["state"] == "succeeded"
    after = await agent.context()
    assert is_folded(before, after)
    assert evicted_seqs(after, "dropped") == set()
    assert after["compaction"]["reason"] is None
    await check_coverage(client)
    again = await agent.context()  # the context is stable
    assert (again["epoch"], again["sha256"]) == (after["epoch"], after["sha256"])
    epochs = (await client.get("/v1/sessions/s/epochs")).json()["items"]
    assert "forced" in {epoch["cause"] for epoch in epochs}


async def test_s0_02_existing_summaries_show_after_a_requested_compaction(
    client: httpx.AsyncClient, worker: None, database_url: str
) -> None:
    """The worker has already summarized ahead, so the run finds nothing new and says so."""
    agent = await begin_session(client, "default", 40)
    await agent.context()  # tells the worker the window
    await talk(agent, 22)
    async with worker_queue(database_url) as done:
        await done()
    before = await agent.context()
    *_, ahead = (await client.get("/v1/sessions/s/summaries", params={"live": True})).json()["items"]
    assert before["summaries"] == []
    run = await compact(client)
    if run["state"] == "skipped":
        assert run["error"] == f"nothing to compact: events 1 to {ahead['to_seq']} are summarized already"
    assert is_folded(before, await agent.context())
    second = await compact(client)
    assert (second["state"], second["from_seq"]) == ("skipped", 1)
    assert "are summarized already" in second["error"]


async def test_s0_02_another_model_or_policy_keeps_the_fold(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin_session(client, "default")
    before = await agent.context()
    await compact(client)
    assert is_folded(before, await agent.context(view="another"))
    assert is_folded(before, await agent.context(model="gpt-4o"))
    assert is_folded(before, await agent.context(policy={"low_water": 0.5}))


async def test_s0_02_force_without_a_summary_schedules_one(
    client: httpx.AsyncClient, worker: None, database_url: str
) -> None:
    agent = await begin_session(client, "default")
    before = await agent.context(force=True)
    assert (before["summaries"], before["compaction"]) == ([], {"state": "scheduled", "reason": None})
    async with worker_queue(database_url) as done:
        await done()
    assert is_folded(before, await agent.context())
    assert [run["reason"] for run in await runs(client)] == ["requested"]


async def test_s0_02_no_forced_run_is_there_before_the_call_that_forced_it(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """The call says for which window a worker summarizes."""
    agent = await begin_session(client, "default")
    forced = "SELECT reason FROM compactions"
    blocking, watching = [await asyncpg.connect(for_asyncpg(database_url)) for _ in range(2)]
    try:
        async with asyncio.timeout(WAIT_MS / 1000), blocking.transaction():
            await blocking.execute("LOCK TABLE model_calls IN EXCLUSIVE MODE")
            asking = asyncio.create_task(agent.context(force=True))
            while not await count_waiting(watching):  # noqa: ASYNC110 - Postgres announces no waiting
                await asyncio.sleep(0)
            assert await watching.fetch(forced) == []
        assert (await asking)["compaction"] == {"state": "scheduled", "reason": None}
        assert [row["reason"] for row in await watching.fetch(forced)] == ["requested"]
    finally:
        await blocking.close()
        await watching.close()


async def test_s0_02_force_twice_schedules_once(client: httpx.AsyncClient) -> None:
    agent = await begin_session(client, "default")
    for _ in range(3):
        assert (await agent.context(force=True))["compaction"]["state"] == "scheduled"
    assert len(await runs(client)) == 1


async def test_s0_02_force_with_wait_ms_shows_the_summary_in_that_context(
    client: httpx.AsyncClient, worker: None
) -> None:
    agent = await begin_session(client, "default")
    before = await agent.context()
    assert is_folded(before, await agent.context(force=True, wait_ms=WAIT_MS))


@pytest.mark.parametrize("waits", [{}, {"wait_ms": WAIT_MS}])
async def test_s4_16_force_says_that_there_is_nothing_to_compact(
    client: httpx.AsyncClient, worker: None, waits: Json
) -> None:
    agent = await begin_session(client, "default", 3)
    context = await agent.context(force=True, **waits)
    # A finished run's job may stay in the queue for a moment.
    assert context["compaction"]["state"] in ("none", "scheduled" if waits else "none")
    assert context["compaction"]["reason"].startswith("nothing to compact")


async def test_s4_16_force_says_that_the_policy_writes_no_summaries(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin_session(client, {"summarize": {"enabled": False}})
    reason = "the policy writes no summaries (`summarize.enabled` is false)"
    assert (await agent.context(force=True))["compaction"] == {"state": "none", "reason": reason}
    assert (await compact(client))["error"] == reason


async def test_s4_16_a_failed_compaction_is_reported_in_the_next_context(
    client: httpx.AsyncClient, database_url: str, worker: None, model: Summarizers
) -> None:
    model.default = empty()
    document = await preset(client, "default", on_fail="unchanged")
    agent = await begin_session(client, document)
    await agent.context()
    async with worker_queue(database_url) as done:
        run = await compact(client)
        assert run["state"] == "failed"
        await done()  # a finished run's job may stay in the queue for a moment
    context = await agent.context()
    assert (context["summaries"], context["compaction"]["state"]) == ([], "none")
    assert context["compaction"]["reason"] == f"the requested compaction wrote no summary: {run['error']}"
    forced = await agent.context(force=True, wait_ms=WAIT_MS)
    assert forced["compaction"]["reason"] == run["error"]
