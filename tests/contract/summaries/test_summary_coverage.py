"""Summarized events are always shown by their summaries: to new views, later views, and other windows or policies."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.runtime import wiring
from app.runtime.settings import Settings
from app.worker import run as run_worker
from tests.conformance.agent import Agent, Json, evicted_seqs, request_text
from tests.conformance.session_course import WorkerQueue, turn, worker_queue
from tests.conftest import serving
from tests.support.background import Background
from tests.support.pooler import pooled
from tests.support.statements import ServerLog

TIMELINE, PIPELINE, CLIP, THRESHOLD = (
    pytest.param(name, marks=pytest.mark.slow) for name in ("timeline", "pipeline", "clip", "threshold")
)
PRESETS = ("default", TIMELINE, PIPELINE, "clip", THRESHOLD)
"""`make test` runs one preset that merges its summaries and one that summarizes in batches."""
WINDOW = 8_000
LINES = 40
LEAST_USED = 0.9 * 0.7 * 0.78
"""The least share of the target in use: nine tenths of `low_water` at the lowest trigger of these presets."""


@pytest.fixture
async def worker(database_url: str) -> AsyncIterator[Background]:
    """A worker with the extractive summarizer, which the test starts."""
    async with Background(
        lambda stop: run_worker(database_url, stop, wiring.worker_work(pooled(Settings(), database_url)))
    ) as background:
        yield background


@pytest.fixture
async def worker_done(database_url: str) -> AsyncIterator[WorkerQueue]:
    """A wait for the worker to finish its jobs."""
    async with worker_queue(database_url) as waiting:
        yield waiting


def edit_turns(first: int, last: int) -> list[Json]:
    """Return turns that read and change a file, about 500 tokens each."""
    events: list[Json] = []
    for n in range(first, last):
        found = "\n".join(f"{line}: value_{n}_{line} = compute({line})" for line in range(LINES))
        events += [
            {"type": "user.message", "content": f"Change module_{n}, please."},
            {"type": "tool.call", "call_id": f"r{n}", "tool": "read", "arguments": {"path": f"src/module_{n}.py"}},
            {"type": "tool.result", "call_id": f"r{n}", "content": found},
            {"type": "tool.call", "call_id": f"e{n}", "tool": "edit", "arguments": {"path": f"src/module_{n}.py"}},
            {"type": "tool.result", "call_id": f"e{n}", "content": "done"},
            {"type": "assistant.message", "content": f"module_{n} is changed."},
        ]
    return events


async def begin_session(client: httpx.AsyncClient, preset: str, **more: Any) -> Agent:
    document = (await client.get(f"/v1/policies/{preset}")).json()["policy"]
    return await Agent.begin(client, {**document, "window_tokens": WINDOW, **more})


async def covered_to(client: httpx.AsyncClient) -> int:
    items = (await client.get("/v1/sessions/s/summaries", params={"live": True})).json()["items"]
    return max((item["to_seq"] for item in items), default=0)


def covered_drops(context: Json, covered: int) -> list[Json]:
    return [r for r in context["evictions"] if r["disposition"] == "dropped" and r["from_seq"] <= covered]


async def test_merged_summaries_are_reloaded_only_after_new_ones_were_written(
    database_url: str, worker: Background, worker_done: WorkerQueue
) -> None:
    log = await ServerLog.begin(database_url)

    def reads() -> int:
        return sum("status = 'superseded' AND to_seq" in one.sql for one in log.statements())

    async with serving(Settings(), database_url) as base, httpx.AsyncClient(base_url=base) as http:
        worker.start()
        agent = await begin_session(http, "default")
        await agent.post(*edit_turns(0, 40))
        await worker_done()
        assert (await agent.context(force=True))["summaries"]
        before = reads()
        for _ in range(3):
            await agent.context(force=True)
        assert (before, reads()) == (1, 1)
        await agent.post(*edit_turns(40, 80))
        await worker_done()
        await agent.context(force=True)
        assert reads() == 2


async def test_a_view_with_drops_is_reloaded_only_when_the_cover_has_grown(
    database_url: str, worker: Background, worker_done: WorkerQueue
) -> None:
    log = await ServerLog.begin(database_url)

    def reads() -> int:
        return sum(") last_call ON true" in one.sql for one in log.statements())

    async with serving(Settings(), database_url) as base, httpx.AsyncClient(base_url=base) as http:
        agent = await begin_session(http, "default")
        await agent.post(*edit_turns(0, 40))
        assert covered_drops(await agent.context(), 10_000)
        before = reads()
        for _ in range(3):
            await agent.user("go on")
            assert covered_drops(await agent.context(), 10_000)
        assert reads() == before
        worker.start()
        await worker_done()
        await agent.user("go on")
        healed = await agent.context()
        assert not covered_drops(healed, await covered_to(http))
        assert healed["summaries"]
        assert reads() > before


@pytest.mark.parametrize("preset", PRESETS)
async def test_a_new_view_shows_the_summaries_of_all_covered_events(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue, preset: str
) -> None:
    worker.start()
    agent = await begin_session(client, preset)
    await agent.post(*edit_turns(0, 160))  # about ten windows
    await worker_done()
    covered = await covered_to(client)
    assert covered
    for view, window in (("main", WINDOW), ("narrow", WINDOW * 2 // 3), ("wide", 4 * WINDOW)):
        context = await agent.context(view=view, max_tokens=window)
        assert covered_drops(context, covered) == []
        assert context["summaries"][0]["from_seq"] == 1
        assert context["tokens"]["estimate"] <= context["tokens"]["target"]
        assert (await client.get("/v1/sessions/s/coverage", params={"view": view})).json()["ok"]
    if preset != "pipeline":  # its window of forty turns and its stubs are the limit there
        assert context["tokens"]["estimate"] >= LEAST_USED * context["tokens"]["target"]


@pytest.mark.parametrize("preset", ["default", TIMELINE, PIPELINE, CLIP, THRESHOLD])
async def test_a_view_far_smaller_than_the_summarized_window_shows_the_summaries(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue, preset: str
) -> None:
    worker.start()
    agent = await begin_session(client, preset, window_tokens=30_000)
    await agent.post(*edit_turns(0, 160))
    await worker_done()
    covered = await covered_to(client)
    context = await agent.context(view="small", max_tokens=WINDOW)
    assert covered_drops(context, covered) == []
    assert context["summaries"][0]["from_seq"] == 1


@pytest.mark.parametrize("preset", PRESETS)
async def test_a_drop_is_healed_at_the_next_context_once_there_is_a_summary(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue, preset: str
) -> None:
    agent = await begin_session(client, preset)
    await agent.post(*edit_turns(0, 60))
    before = await agent.context()  # before any summary was written
    assert evicted_seqs(before, "dropped")
    assert before["tokens"]["estimate"] >= 0.9 * 0.7 * before["tokens"]["target"]
    worker.start()
    await worker_done()
    covered = await covered_to(client)
    after = await agent.context()
    assert covered_drops(after, covered) == []
    assert after["summaries"]
    epochs = (await client.get("/v1/sessions/s/epochs", params={"view": "main"})).json()["items"]
    assert [row["cause"] for row in epochs][1:] in (["healed"], ["budget"])
    assert (await agent.context())["epoch"] == after["epoch"]


@pytest.mark.parametrize("preset", [TIMELINE, PIPELINE, CLIP, "threshold"])
async def test_a_change_of_policy_keeps_all_summaries(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue, preset: str
) -> None:
    worker.start()
    agent = await begin_session(client, "default")
    await agent.post(*edit_turns(0, 160))
    await worker_done()
    before = (await client.get("/v1/sessions/s/summaries", params={"live": True})).json()["items"]
    assert len(before) > 2
    await agent.context()
    document = (await client.get(f"/v1/policies/{preset}")).json()["policy"]
    changed = await agent.context(policy={**document, "window_tokens": WINDOW})
    assert covered_drops(changed, before[-1]["to_seq"]) == []
    assert changed["summaries"][0]["from_seq"] == 1
    await agent.post(*edit_turns(160, 190))
    await worker_done()
    after = await agent.context()
    assert covered_drops(after, await covered_to(client)) == []
    if preset != "clip":  # the only live summary merges all earlier ones
        [live] = (await client.get("/v1/sessions/s/summaries", params={"live": True})).json()["items"]
        reached, left = {live["id"]}, [live["id"]]
        while left:
            sources = (await client.get(f"/v1/sessions/s/summaries/{left.pop()}")).json()["sources"]
            reached.update(sources)
            left += sources
        assert {one["id"] for one in before} <= reached


@pytest.mark.parametrize("preset", ["timeline", "clip", "threshold"])
async def test_nothing_is_dropped_without_a_summary_below_the_target(client: httpx.AsyncClient, preset: str) -> None:
    agent = await begin_session(client, preset, window_tokens=24_000)
    grown = [0]
    for number in range(100):
        await agent.post(*edit_turns(number, number + 1))
        context = await agent.context()
        if context["evictions"]:
            break
        grown.append(context["tokens"]["estimate"])
    turn_tokens = grown[-1] - grown[-2]  # all turns are of equal size
    assert grown[-1] + turn_tokens > 0.99 * context["tokens"]["target"]


async def test_a_context_that_waits_gets_the_summaries_its_window_needs(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.post(*edit_turns(0, 60))  # far less than the session's default window
    context = await agent.context(max_tokens=WINDOW, wait_ms=0)
    assert context["summaries"]
    assert not evicted_seqs(context, "dropped")


async def test_the_retry_after_an_overflow_has_a_summary(client: httpx.AsyncClient) -> None:
    agent = Agent(client)
    await agent.post(*edit_turns(0, 60))
    call = await agent.context(max_tokens=100_000)
    report = {"error": {"status": 400, "message": "prompt is too long: 60000 tokens > 30000 maximum"}}
    verdict = (await client.post(f"/v1/sessions/s/calls/{call['call_id']}/outcome", json=report)).json()
    assert verdict["next"]["body"]["wait_ms"] > 0
    again = await agent.context(**{**verdict["next"]["body"], "wait_ms": 0})  # there is no worker to wait for
    assert again["summaries"]
    assert not evicted_seqs(again, "dropped")


@pytest.mark.parametrize("short_words", [0, 20, 60])
async def test_a_log_that_fits_is_loaded_whole_whatever_its_sessions_estimator(
    client: httpx.AsyncClient, short_words: int
) -> None:
    """The session's estimator counts three times as many tokens for the long words as the view's tokenizer."""
    agent = Agent(client)
    for number in range(40):
        await agent.user(f"number-{number} " + "internationalization " * 50 + "word " * short_words)
    whole = await agent.context(view="wide", model="gpt-4o", max_tokens=100_000)
    context = await agent.context(model="gpt-4o", max_tokens=int(whole["tokens"]["estimate"] / 0.84))
    assert context["tokens"]["estimator"].startswith("tiktoken")
    assert context["evictions"] == []
    assert "number-0 " in request_text(context)


@pytest.mark.slow
async def test_a_context_as_of_an_earlier_seq_shows_no_later_summaries(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue
) -> None:
    worker.start()
    agent = await begin_session(client, "default")
    for start in range(0, 250, 25):
        await agent.post(*edit_turns(start, start + 25))
        await worker_done()
    for at in (300, 480, 900):  # most summaries live at that seq have been merged since
        earlier = await agent.context(view=f"of-{at}", at=at)
        assert earlier["summaries"][0]["from_seq"] == 1
        assert all(one["to_seq"] <= at for one in earlier["summaries"])
        assert not evicted_seqs(earlier, "dropped")


async def test_a_round_larger_than_the_window_delays_no_summary(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue
) -> None:
    worker.start()
    agent = await begin_session(client, "default")
    await agent.post(*edit_turns(0, 20))
    await agent.calls("read", "\n".join(f"{n}: entry_{n}" for n in range(3_000)))
    await agent.post(*edit_turns(20, 80))
    await worker_done()
    head = (await client.get("/v1/sessions/s")).json()["head"]
    assert await covered_to(client) > head * 0.8


async def test_summaries_cover_a_smaller_view_after_its_first_context(
    client: httpx.AsyncClient, worker: Background, worker_done: WorkerQueue
) -> None:
    worker.start()
    agent = await begin_session(client, "default", window_tokens=8 * WINDOW)
    await agent.post(*edit_turns(0, 160))
    await worker_done()
    await agent.context(max_tokens=8 * WINDOW)
    await agent.context(view="side", max_tokens=WINDOW)
    await worker_done()
    covered = await covered_to(client)
    assert covered > 900  # of 960; the main view's window alone would need far fewer
    side = await agent.context(view="side", max_tokens=WINDOW)
    assert covered_drops(side, covered) == []
    assert side["summaries"][-1]["to_seq"] == covered


@pytest.mark.parametrize(
    ("preset", "window", "trigger", "system"),
    [
        pytest.param("timeline", 6_000, 5_400, 0, marks=pytest.mark.slow),
        pytest.param("timeline", 6_000, 5_400, 900, marks=pytest.mark.slow),
        ("threshold", 6_000, 3_952, 0),
    ],
)
async def test_in_a_small_window_each_call_is_within_its_trigger_and_few_open_an_epoch(
    client: httpx.AsyncClient,
    worker: Background,
    worker_done: WorkerQueue,
    preset: str,
    window: int,
    trigger: int,
    system: int,
) -> None:
    """By its own figures, each preset would keep too much verbatim here to leave room for another summary."""
    worker.start()
    agent = await begin_session(client, preset, window_tokens=window)
    if system:
        await agent.post({"type": "system.prompt", "content": "word " * system})
    epochs, folded = [], 0
    for number in range(40):
        await agent.post(*turn(number, (3, 6, 4, 8)[number % 4]))  # 200 to 300 tokens
        await worker_done()
        context = await agent.context(format="openai")
        assert context["tokens"]["estimate"] <= trigger
        assert context["compaction"]["state"] != "stalled"
        assert not evicted_seqs(context, "dropped")
        if context["summaries"]:
            folded += 1
            epochs.append(context["epoch"])
    assert folded >= 20
    assert len(set(epochs)) <= 0.7 * folded
