"""Dropped events and the summaries written of them meanwhile: which of these make a held view be planned again."""

from dataclasses import dataclass
from uuid import UUID

import httpx
import pytest

from app.core.assembly import inputs
from app.core.memory.cover import StoredSummary
from app.store import compactions, summaries
from app.store.compactions import RunOutcome
from app.store.engine import Database
from app.store.ids import new_id, session_ref
from app.tenants import DEFAULT_TENANT
from tests.conformance.agent import Agent, Json
from tests.conftest import Servers
from tests.contract.summaries.test_summary_coverage import begin_session, covered_drops, edit_turns

SUMMARIZED_AT = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class Worker:
    """A worker's writes to the session `s`, made by the test."""

    database: Database
    run: UUID

    async def begin(self) -> None:
        await compactions.begin(self.database, session_ref(DEFAULT_TENANT, "s"), self.run, "pressure", 0)

    async def summarize(self, first: int, last: int) -> None:
        ref = session_ref(DEFAULT_TENANT, "s")
        new = StoredSummary(
            id=str(new_id()),
            from_seq=first,
            to_seq=last,
            depth=0,
            tokens=30,
            text=f"Events {first} to {last}: several modules were changed.",
            source_tokens=2_000,
            events=last - first + 1,
            starts_at=SUMMARIZED_AT,
            ends_at=SUMMARIZED_AT,
            cover_id=str(ref.session_id),
            summarizer="extractive",
        )
        async with self.database.transaction() as tx:
            await summaries.insert(tx, ref, new)

    async def end(self) -> None:
        ref = session_ref(DEFAULT_TENANT, "s")
        await compactions.end(self.database, ref.session_id, [self.run], RunOutcome("succeeded"))


@pytest.fixture(autouse=True)
def long_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a heal wait for more summaries however few events are dropped."""
    monkeypatch.setattr(inputs, "HEAL_EVENTS", 0)


@pytest.fixture
def worker(database: Database) -> Worker:
    return Worker(database, new_id())


async def next_context(agent: Agent) -> Json:
    await agent.user("go on")
    return await agent.context()


async def test_drops_heal_in_steps_while_summaries_are_written(
    client: httpx.AsyncClient, worker: Worker, reads: list[str]
) -> None:
    agent = await begin_session(client, "default")
    await agent.post(*edit_turns(0, 60))
    assert covered_drops(await agent.context(), 30)
    await worker.begin()
    for first, last, heals in ((1, 12, True), (13, 18, False), (19, 23, False), (24, 24, True), (25, 30, False)):
        await worker.summarize(first, last)
        reads.clear()
        context = await next_context(agent)
        assert bool(reads) == (covered_drops(context, last) == []) == heals, (first, last)
    await worker.end()
    context = await next_context(agent)
    assert covered_drops(context, 30) == []
    assert [one["to_seq"] for one in context["summaries"]][-1:] == [30]
    reads.clear()
    assert (await next_context(agent))["epoch"] == context["epoch"]
    assert reads == []


async def test_drops_heal_in_steps_on_a_server_that_appends_nothing(
    servers: Servers, worker: Worker, reads: list[str]
) -> None:
    appending, asking = servers
    agent = await begin_session(asking, "default")
    await Agent(appending).post(*edit_turns(0, 60))
    assert covered_drops(await agent.context(), 30)
    await worker.begin()
    for first, last, heals in ((1, 12, True), (13, 23, False), (24, 24, True), (25, 30, False)):
        await worker.summarize(first, last)
        await Agent(appending).user("go on")
        reads.clear()
        assert (covered_drops(await agent.context(), last) == []) == heals, (first, last)
        assert ("load" in reads) == heals
    await worker.end()
    await Agent(appending).user("go on")
    assert covered_drops(await agent.context(), 30) == []


async def test_drops_heal_at_once_when_all_of_them_are_covered(
    client: httpx.AsyncClient, worker: Worker, reads: list[str]
) -> None:
    agent = await begin_session(client, "default")
    await agent.post(*edit_turns(0, 60))
    await worker.begin()
    await worker.summarize(1, 200)
    dropped = (await agent.context())["evictions"]
    last = max(row["to_seq"] for row in dropped if row["disposition"] == "dropped")
    assert 200 < last < 400
    await worker.summarize(201, last)
    assert covered_drops(await next_context(agent), last) == []


async def test_drops_of_a_short_log_heal_at_every_summary(
    client: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    agent = await begin_session(client, "default")
    await agent.post(*edit_turns(0, 60))
    assert covered_drops(await agent.context(), 30)
    await worker.begin()
    for first, last in ((1, 12), (13, 18), (19, 30)):
        await worker.summarize(first, last)
        assert covered_drops(await next_context(agent), last) == []


async def test_a_summary_of_shown_events_leaves_the_view_as_it_is(
    client: httpx.AsyncClient, worker: Worker, reads: list[str]
) -> None:
    agent = await begin_session(client, "default", window_tokens=100_000)
    await agent.post(*edit_turns(0, 60))
    before = await agent.context()
    assert before["evictions"] == []
    await worker.summarize(1, 60)
    reads.clear()
    assert (await next_context(agent))["epoch"] == before["epoch"]
    assert reads == []


async def test_a_context_with_a_key_needs_no_read_while_the_worker_is_at_work(
    client: httpx.AsyncClient, worker: Worker, reads: list[str]
) -> None:
    agent = await begin_session(client, "default")
    await agent.post(*edit_turns(0, 5))
    await worker.begin()
    await agent.context(force=True)
    await agent.user("go on")
    reads.clear()
    headers = {"Idempotency-Key": "first"}
    first = await client.post("/v1/sessions/s/context", json={}, headers=headers)
    assert (first.status_code, reads) == (200, [])
    again = await client.post("/v1/sessions/s/context", json={}, headers=headers)
    assert again.json() == first.json()
