"""S1: after an overflow a context is reduced and retried once; other errors are left to the caller."""

import httpx
import pytest

from tests.conformance.test_s0_overflow import begin_session, report_outcome


async def test_s1_06_overflow_renders_again_forced_and_retries_once(client: httpx.AsyncClient) -> None:
    agent = await begin_session(client)
    context = await agent.context()
    overflow_error = {"error": {"message": "maximum context reached"}}
    verdict = await report_outcome(client, context, overflow_error)
    again = await agent.context(**{**verdict["next"]["body"], "wait_ms": 0})
    assert again["epoch"] == context["epoch"] + 1
    assert again["evictions"]
    epochs = (await client.get("/v1/sessions/s/epochs")).json()["items"]
    assert epochs[-1]["cause"] == "overflow"
    assert (await report_outcome(client, again, overflow_error))["action"] == "stop"
    assert (await agent.context(409, retry_of=again["call_id"]))["type"] == "/problems/conflict"


@pytest.mark.parametrize(
    "error",
    [
        {"status": 401, "message": "invalid x-api-key"},
        {"status": 429, "message": "Rate limit reached: too many tokens per min"},
        {"status": 500},
    ],
)
async def test_s1_06_other_errors_are_left_to_the_caller(client: httpx.AsyncClient, error: dict[str, object]) -> None:
    agent = await begin_session(client, 2)
    context = await agent.context()
    assert await report_outcome(client, context, {"error": error}) == {"overflow": False, "action": "none"}
    assert (await agent.context(409, retry_of=context["call_id"]))["type"] == "/problems/conflict"
