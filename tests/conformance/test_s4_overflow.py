"""S4: thresholds by the last reported usage, and overflow by its list of patterns, under the preset `threshold`."""

import httpx
import pytest

from tests.conformance.agent import WAIT_MS, Agent, Json, evicted_seqs
from tests.conformance.conftest import compact, runs
from tests.conformance.session_course import worker_queue
from tests.conformance.test_s0_overflow import report_outcome
from tests.unit.policy.test_overflow import THRESHOLD

TEXT = "word " * 80
WINDOW = 12_000  # reserve 3,000: the threshold is 9,000, and 4,200 are kept


async def begin_session(client: httpx.AsyncClient, turns: int, name: str = "s", window: int = WINDOW) -> Agent:
    agent = await Agent.begin(client, "threshold", name, max_tokens=window, model="a-model")
    for turn in range(turns):
        await agent.user(f"turn {turn} {TEXT}")
        await agent.assistant(TEXT)
    await agent.user("and now?")
    return agent


def usage_report(tokens: int) -> Json:
    return {"usage": {"input_tokens": tokens, "output_tokens": 1}}


async def test_s4_03_the_last_usage_is_preferred_to_the_estimate(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin_session(client, 20)
    context = await agent.context()
    assert context["tokens"]["estimate"] < 5_000
    await report_outcome(client, context, usage_report(8_950))
    grown = await agent.context(wait_ms=WAIT_MS)
    assert (grown["epoch"], grown["tokens"]["estimate"]) == (context["epoch"], 8_950)
    await agent.user(TEXT)  # a hundred tokens more exceed the threshold
    reduced = await agent.context(wait_ms=WAIT_MS)
    assert reduced["epoch"] == context["epoch"] + 1
    assert evicted_seqs(reduced, "summarized")


async def test_s4_03_the_last_usage_has_a_summary_written_ahead_of_need(
    client: httpx.AsyncClient, worker: None, database_url: str
) -> None:
    """No request waits: the append after the report knows the usage and wakes the worker."""
    agent = await begin_session(client, 20)
    context = await agent.context()
    await report_outcome(client, context, usage_report(8_950))
    assert (await agent.user(TEXT)) > 40
    async with worker_queue(database_url) as done:
        await done()
    reduced = await agent.context()
    assert evicted_seqs(reduced, "summarized")
    assert reduced["compaction"]["state"] != "stalled"


async def test_s4_03_a_view_that_is_above_its_threshold_only_by_its_last_usage_wakes_the_worker(
    client: httpx.AsyncClient, worker: None, database_url: str
) -> None:
    """Nothing is appended after the report, and no request waits."""
    agent = await begin_session(client, 20)
    context = await agent.context()
    await report_outcome(client, context, usage_report(9_500))
    stalled = await agent.context()
    assert (stalled["compaction"]["state"], stalled["tokens"]["estimate"]) == ("stalled", 9_500)
    async with worker_queue(database_url) as done:
        await done()
    reduced = await agent.context()
    assert evicted_seqs(reduced, "summarized")
    assert reduced["tokens"]["estimate"] <= 9_000


async def test_s4_03_growth_after_the_last_usage_is_added(client: httpx.AsyncClient) -> None:
    agent = await begin_session(client, 20)
    context = await agent.context()
    await report_outcome(client, context, usage_report(7_000))
    await agent.user(TEXT * 4)
    grown = await agent.context()
    assert 7_000 + 400 <= grown["tokens"]["estimate"] <= 7_000 + 1_000


async def test_s4_03_errors_and_reports_without_usage_are_skipped(client: httpx.AsyncClient) -> None:
    agent = await begin_session(client, 20)
    context = await agent.context()
    await report_outcome(client, context, {"error": {"status": 500, "message": "aborted"}, **usage_report(8_999)})
    second = await agent.context()
    await report_outcome(client, second, {"latency_ms": 30})
    assert (await agent.context())["tokens"]["estimate"] == context["tokens"]["estimate"]


async def test_s4_03_after_a_compaction_newer_than_the_usage_the_current_view_is_estimated(
    client: httpx.AsyncClient, worker: None
) -> None:
    agent = await begin_session(client, 20)
    context = await agent.context()
    await report_outcome(client, context, usage_report(8_950))
    await agent.user(TEXT)
    reduced = await agent.context(wait_ms=WAIT_MS)
    estimate = reduced["tokens"]["estimate"]
    assert reduced["summaries"]
    assert estimate < 8_950
    again = await agent.context()
    assert again["epoch"] == reduced["epoch"]
    assert again["tokens"]["estimate"] == pytest.approx(estimate, rel=0.05)  # not the usage reported before


@pytest.mark.parametrize("phrase", THRESHOLD)
async def test_s4_05_its_patterns(client: httpx.AsyncClient, phrase: str) -> None:
    agent = await begin_session(client, 1)
    verdict = await report_outcome(client, await agent.context(), {"error": {"message": phrase.upper()}})
    assert (verdict["overflow"], verdict["action"], verdict["matched"]["set"]) == (True, "retry", "threshold")


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Rate limit reached for this model, too many tokens"},
        {"code": "insufficient_quota", "message": "token limit exceeded"},
        {"message": "it said: 400 status code (no body)"},
        {"message": ""},
        {"message": None, "status": 500},
        {"message": "something else", "status": 413},
    ],
)
async def test_s4_05_and_what_is_none(client: httpx.AsyncClient, error: Json) -> None:
    agent = await begin_session(client, 1)
    verdict = await report_outcome(client, await agent.context(), {"error": error})
    assert verdict == {"overflow": False, "action": "none"}


BARE = [
    {"status": 400},
    {"status": 413, "message": None},
    {"status": 429, "message": ""},
    {"message": "413 status code (no body)"},
    {"message": "429 status code (no body)", "status": 429},
]


@pytest.mark.parametrize("error", BARE)
async def test_s4_05_a_status_without_a_body(client: httpx.AsyncClient, error: Json) -> None:
    agent = await begin_session(client, 1)
    verdict = await report_outcome(client, await agent.context(), {"error": error})
    assert (verdict["overflow"], verdict["action"], verdict["matched"]["set"]) == (True, "retry", "threshold")


@pytest.mark.parametrize("error", BARE)
async def test_s4_05_says_nothing_to_another_policy(client: httpx.AsyncClient, error: Json) -> None:
    agent = await Agent.begin(client, "default", "s", max_tokens=WINDOW)
    await agent.user("hello")
    verdict = await report_outcome(client, await agent.context(), {"error": error})
    assert verdict == {"overflow": False, "action": "none"}


async def test_s4_06_the_last_usage_is_looked_at_inside_a_turn_too(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin_session(client, 20)
    await agent.calls(result=TEXT)
    context = await agent.context()
    await report_outcome(client, context, usage_report(8_990))
    await agent.calls(result=TEXT)
    reduced = await agent.context(wait_ms=WAIT_MS)
    assert (bool(evicted_seqs(reduced, "summarized")), evicted_seqs(reduced, "dropped")) == (True, set())


async def test_s4_07_overflow_compacts_and_retries(client: httpx.AsyncClient, worker: None) -> None:
    """The run's record replaces the original's two events: start and end times, reason, and savings."""
    agent = await begin_session(client, 30)
    context = await agent.context()
    verdict = await report_outcome(client, context, {"error": {"message": "prompt is too long"}})
    again = await agent.context(**{**verdict["next"]["body"], "wait_ms": WAIT_MS})
    assert evicted_seqs(again, "summarized")
    assert await report_outcome(client, again, usage_report(again["tokens"]["estimate"])) == {
        "overflow": False,
        "action": "none",
    }
    overflow_runs = [run for run in await runs(client) if run["reason"] == "overflow"]
    assert overflow_runs  # one from the report, one from the retry's wait
    assert {run["state"] for run in overflow_runs} <= {"succeeded", "skipped"}
    done = next(run for run in await runs(client) if run["state"] == "succeeded" and run["started_at"])
    assert done["started_at"] <= done["finished_at"]
    assert done["tokens_after"] < done["tokens_before"]
    assert done["to_seq"]
    assert done["summaries"]


async def test_s4_07_nothing_to_compact_is_no_error(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin_session(client, 0)
    context = await agent.context()
    verdict = await report_outcome(client, context, {"error": {"message": "prompt is too long"}})
    again = await agent.context(**{**verdict["next"]["body"], "wait_ms": 0})
    assert again["request"] == context["request"]
    assert (await report_outcome(client, again, {"error": {"message": "prompt is too long"}}))["action"] == "stop"
    await compact(client)
    assert {run["state"] for run in await runs(client)} == {"skipped"}


async def test_s4_17_a_run_says_why_it_was_made(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin_session(client, 30)
    await compact(client)
    assert {run["reason"] for run in await runs(client) if run["summaries"]} <= {"requested", "pressure"}
    assert (await runs(client))[0]["reason"] == "requested"
    context = await agent.context()
    await report_outcome(client, context, {"error": {"message": "prompt is too long"}})
    assert "overflow" in {run["reason"] for run in await runs(client)}
    other = await begin_session(client, 60, "s2")
    await other.context(wait_ms=WAIT_MS)
    made = (await client.get("/v1/sessions/s2/compactions")).json()["items"]
    assert {run["reason"] for run in made} <= {"pressure", "waited"}
    one = (await client.get(f"/v1/sessions/s2/compactions/{made[0]['id']}")).json()
    assert one["reason"] == made[0]["reason"]
