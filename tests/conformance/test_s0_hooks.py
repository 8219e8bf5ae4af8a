"""S0.16 and S4.7: notifications before and after a compaction, under the presets `timeline` and `threshold`."""

import asyncio

import httpx
import pytest

from tests.conformance import test_s0_summaries as timeline
from tests.conformance import test_s4_compaction as threshold
from tests.conformance.agent import Json
from tests.conformance.conftest import compact, running_worker
from tests.support.sse import streaming, take
from tests.support.summarizers import Summarizers, empty, ok, slow, status

SECONDS_MAX = 60


async def compaction_events(server: str, number: int) -> list[Json]:
    """Return the first `number` compaction events of the stream."""
    async with asyncio.timeout(SECONDS_MAX), streaming(server, "/v1/sessions/s/stream", types="compaction") as events:
        return [event.data for event in await take(events, number)]


@pytest.mark.wing("stream")
async def test_s0_16_before_comes_before_and_after_shares_its_id(
    server: str, client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await timeline.whole(client)
    answering = asyncio.Event()
    model.queue(slow(answering, ok(timeline.WHOLE)))
    run = (await client.post("/v1/sessions/s/compactions", json={})).json()
    scheduled, before = await compaction_events(server, 2)  # before the model has answered
    assert (scheduled["state"], before["state"], before["run"]["state"]) == ("scheduled", "started", "running")
    assert before["tokens"]["before"] > 0
    assert (before["tokens"]["after"], before["tokens"]["compacted"]) == (None, None)
    answering.set()
    after = (await compaction_events(server, 3))[2]
    assert [step["run"]["id"] for step in (scheduled, before, after)] == [run["id"]] * 3
    assert (after["state"], after["run"]["state"]) == ("finished", "succeeded")
    assert after["tokens"]["before"] == before["tokens"]["before"]
    assert after["tokens"]["compacted"] == after["tokens"]["before"] - after["tokens"]["after"] > 0


@pytest.mark.wing("stream")
async def test_s0_16_what_was_skipped_or_discarded_compacted_nothing_and_says_why(
    server: str, client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await timeline.begin(client)
    await agent.user("small")
    await compact(client)
    _, after = await compaction_events(server, 2)
    assert (after["state"], after["run"]["state"], after["run"]["error"]) == (
        "finished",
        "skipped",
        "nothing to compact",
    )
    assert after["tokens"]["compacted"] in (None, 0)


@pytest.mark.wing("stream")
async def test_s4_07_start_and_end(server: str, client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    await threshold.ready(client)
    model.queue(ok(threshold.WHOLE))
    run = await compact(client)
    _, start, end = await compaction_events(server, 3)
    assert (start["run"]["reason"], end["run"]["reason"]) == ("requested", "requested")
    assert start["tokens"]["before"] == end["run"]["tokens_before"]
    assert (end["aborted"], end["will_retry"]) == (False, False)
    assert (end["kept_from_seq"], end["run"]["summaries"]) == (run["to_seq"] + 1, run["summaries"])


@pytest.mark.wing("stream")
async def test_s4_07_a_failure_is_notified_as_aborted(
    server: str, client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await threshold.ready(client)
    model.default = empty()
    run = await compact(client)
    _, start, end = await compaction_events(server, 3)
    assert (end["state"], end["aborted"], end["will_retry"]) == ("failed", True, False)
    assert (end["run"]["error"], end["kept_from_seq"]) == (run["error"], None)
    assert end["tokens"] == {"before": start["tokens"]["before"], "after": None, "compacted": 0}


@pytest.mark.wing("stream")
async def test_s4_07_a_postponed_run_is_notified_as_retried(
    server: str, client: httpx.AsyncClient, fast_retries: None, database_url: str, model: Summarizers
) -> None:
    await threshold.ready(client)
    model.queue(status(500), ok(threshold.WHOLE))
    async with running_worker(database_url, model, breaker_seconds=1.0):
        await compact(client)
    steps = await compaction_events(server, 5)
    assert [(step["state"], step["will_retry"], step["run"]["attempts"]) for step in steps] == [
        ("scheduled", False, 0),
        ("started", False, 0),
        ("scheduled", True, 1),
        ("started", False, 1),
        ("finished", False, 1),
    ]
