"""S2: the record of each call, under the preset `pipeline`."""

from uuid import UUID

import httpx
import pytest

from app.store.deletion import purge_calls
from app.store.engine import Database
from tests.conformance.agent import Agent
from tests.conformance.conftest import compact
from tests.conformance.test_s2_summaries import begin, turn, written
from tests.support.summarizers import Summarizers, status


async def report_outcome(client: httpx.AsyncClient, call_id: str) -> None:
    """Report the usage and latency of a call."""
    usage = {"input_tokens": 5_000, "cache_read_tokens": 4_000, "output_tokens": 300}
    answer = await client.post(f"/v1/sessions/s/calls/{call_id}/outcome", json={"usage": usage, "latency_ms": 1_234})
    assert answer.status_code == 200, answer.text


@pytest.mark.wing("audit")
async def test_s2_15_every_call_is_recorded_with_what_it_was_made_of(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client, *(turn(number) for number in range(1, 10)))
    await compact(client)
    await agent.calls(result="word " * 400)
    for number in range(10, 14):
        await agent.post(*turn(number, times=3))
        sent = await agent.context(model="gpt-4o")
    await report_outcome(client, sent["call_id"])
    row = (await client.get(f"/v1/sessions/s/calls/{sent['call_id']}")).json()
    assert (row["head"], row["model"]) == (28, "gpt-4o")  # the turn and the model
    again = (await client.get(f"/v1/sessions/s/calls/{sent['call_id']}/context")).json()
    assert again["request"] == sent["request"]  # the rendered context
    assert row["outcome"]["usage"]["input_tokens"] == 5_000
    assert (row["outcome"]["usage"]["output_tokens"], row["outcome"]["latency_ms"]) == (300, 1_234)
    [summary] = row["summaries"]
    stored = (await client.get(f"/v1/sessions/s/summaries/{summary['id']}")).json()
    assert (stored["from_seq"], stored["to_seq"]) == (summary["from_seq"], summary["to_seq"])  # the summary
    assert row["evictions"] == sent["evictions"] != []
    assert all(eviction["reducer"] and eviction["reason"] for eviction in row["evictions"])


async def test_s2_15_calls_of_the_summarizer_are_recorded_too(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client, turn(1), turn(2), turn(3))
    await agent.context()
    model.queue(status(400, message="it cannot be done"))
    run = await compact(client)
    assert (run["state"], run["tokens_read"]) == ("failed", 0)
    assert "it cannot be done" in run["error"]
    await client.post(f"/v1/sessions/s/compactions/{run['id']}:retry")
    made = await written(client)
    assert (made["summarizer"], made["model"]) == ("openai", "stand-in-1")
    assert made["usage"]["input_tokens"] > 0


@pytest.mark.wing("audit")
async def test_s2_15_records_go_after_their_time_and_are_counted(client: httpx.AsyncClient, database: Database) -> None:
    agent = await Agent.begin(client, {"retain_calls_days": 400}, max_tokens=4_000)
    await agent.user()
    calls = [(await agent.context())["call_id"] for _ in range(3)]
    row = await database.fetchrow("SELECT min(expires_at - created_at) AS kept FROM model_calls")
    assert row is not None and row["kept"].days == 400
    assert await purge_calls(database) == 0
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute(
            "UPDATE model_calls SET expires_at = now() - interval '1 day' WHERE call_id <> :id", id=UUID(calls[2])
        )
    assert await purge_calls(database) == 2
    left = (await client.get("/v1/sessions/s/calls")).json()["items"]
    assert [row["call_id"] for row in left] == [calls[2]]
