"""S0: a provider's context-limit error forces a compaction and one retry, under the preset `timeline`."""

import httpx
import pytest

from tests.conformance.agent import Agent, Json, evicted_seqs, request_text
from tests.unit.policy.test_overflow import TIMELINE

TEXT = "word " * 80


async def begin_session(client: httpx.AsyncClient, turns: int = 20) -> Agent:
    """Create a session well below its threshold."""
    agent = await Agent.begin(client, "timeline", max_tokens=20_000)
    for turn in range(turns):
        await agent.user(f"turn {turn} {TEXT}")
        await agent.assistant(TEXT)
    await agent.user("and now?")
    return agent


async def report_outcome(client: httpx.AsyncClient, context: Json, report: Json) -> Json:
    answer = await client.post(f"/v1/sessions/s/calls/{context['call_id']}/outcome", json=report)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


@pytest.mark.parametrize("phrase", TIMELINE)
async def test_s0_17_each_phrase_forces_a_compaction_and_one_retry(client: httpx.AsyncClient, phrase: str) -> None:
    agent = await begin_session(client)
    context = await agent.context()
    assert context["evictions"] == []
    overflow_error = {"error": {"status": 400, "code": "invalid_request", "message": f"Sorry: {phrase.upper()}!"}}
    verdict = await report_outcome(client, context, overflow_error)
    assert (verdict["overflow"], verdict["action"], verdict["matched"]["set"]) == (True, "retry", "timeline")
    again = await agent.context(**{**verdict["next"]["body"], "wait_ms": 0})
    assert evicted_seqs(again, "summarized")  # written for the retry
    assert len(request_text(again)) <= len(request_text(context)) / 2
    assert (await report_outcome(client, again, overflow_error))[
        "action"
    ] == "stop"  # a second error is left to the caller


async def test_s0_17_the_code_is_looked_at_too(client: httpx.AsyncClient) -> None:
    agent = await begin_session(client, 2)
    overflow_error = {"error": {"status": 400, "code": "context_length_exceeded", "message": "no"}}
    assert (await report_outcome(client, await agent.context(), overflow_error))["action"] == "retry"


async def test_s0_17_other_errors_force_nothing(client: httpx.AsyncClient) -> None:
    agent = await begin_session(client, 2)
    context = await agent.context()
    assert await report_outcome(client, context, {"error": {"status": 500, "message": "out of luck"}}) == {
        "overflow": False,
        "action": "none",
    }
    assert (await agent.context())["epoch"] == context["epoch"]
