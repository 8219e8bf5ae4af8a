"""Contexts that are requested to be recorded and not sent."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from app.core.log.segments import is_held_out
from app.tenants import DEFAULT_TENANT

MODEL: Final = "claude-sonnet-4-5"
POLICY: Final = {"window_tokens": 10_000, "summarize": {"enabled": False}}
NAMES: Final = tuple(f"agent-{number}" for number in range(99))
MESSAGES: Final = [
    one
    for number in range(9)
    for one in (
        {"role": "user", "content": f"{number}: " + f"line {number} of a long file. " * 250},
        {"role": "assistant", "content": "Hello."},
    )
][:-1]


async def context_of(client: httpx.AsyncClient, status: int = 200, session: str = "s", **body: Any) -> dict[str, Any]:
    await client.put(f"/v1/sessions/{session}", json={"policy": POLICY})
    asked = {"messages": MESSAGES, "format": "anthropic", "model": MODEL, **body}
    answer = await client.post(f"/v1/sessions/{session}/context", json=asked)
    assert answer.status_code == status, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def report(client: httpx.AsyncClient, call_id: str, session: str = "s", **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/v1/sessions/{session}/calls/{call_id}/outcome", json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def ledger_of(client: httpx.AsyncClient) -> dict[str, Any]:
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    found: dict[str, Any] = (await client.get("/v1/audit/ledger", params={"since": since})).json()
    return found


@pytest.mark.wing("ledger")
async def test_only_contexts_that_are_requested_so_count_as_not_sent(client: httpx.AsyncClient) -> None:
    for view in ("main", "observed"):
        made = await context_of(client, view=view)
        await report(client, made["call_id"], usage={"input_tokens": made["tokens"]["estimate"]})
    sent = 2 * made["tokens"]["estimate"]
    observed = await context_of(client, observe=True)
    await report(client, observed["call_id"], usage={"input_tokens": 20_000})
    ledger = await ledger_of(client)
    assert observed["view"] == "~observed"
    assert (ledger["totals"]["calls"], ledger["totals"]["input_tokens"]) == (2, sent)
    assert (ledger["observed"]["calls"], ledger["observed"]["input_tokens"]) == (1, 20_000)
    assert 0 < ledger["observed"]["potential_input_tokens"] < 10_000
    own = (await client.get("/v1/sessions/s/ledger", params={"view": "observed"})).json()
    assert own["totals"]["input"]["tokens"] == sent // 2


@pytest.mark.wing("audit")
async def test_observed_calls_are_listed_by_their_view(client: httpx.AsyncClient) -> None:
    await context_of(client)
    observed = await context_of(client, observe=True)
    listed = (await client.get("/v1/sessions/s/calls", params={"view": "~observed"})).json()["items"]
    assert [one["call_id"] for one in listed] == [observed["call_id"]]


async def test_the_usage_of_the_whole_conversation_calibrates_estimates(client: httpx.AsyncClient) -> None:
    made = await context_of(client, observe=True)
    left_out = sum(one["tokens_saved"] for one in made["evictions"])
    whole = made["tokens"]["estimate"] + left_out
    assert left_out > 0
    for _ in range(8):
        await report(client, made["call_id"], usage={"input_tokens": 3 * whole // 2})
        made = await context_of(client, observe=True)
    (model,) = (await client.get("/v1/calibrations")).json()["items"]
    assert model["ratio"] == pytest.approx(1.5, rel=0.03)


async def test_a_refusal_of_the_clients_own_request_has_no_retry(client: httpx.AsyncClient) -> None:
    refusal = {"status": 400, "message": "prompt is too long: 210000 tokens > 200000 maximum"}
    observed, sent = await context_of(client, observe=True), await context_of(client)
    assert (await report(client, observed["call_id"], error=refusal))["action"] == "stop"
    assert (await report(client, sent["call_id"], error=refusal))["action"] == "retry"


@pytest.mark.parametrize("field", [{"view": "main"}, {"retry_of": "019373a1-0000-7000-8000-000000000000"}])
async def test_observed_contexts_have_no_view_of_the_clients_and_no_retry(
    client: httpx.AsyncClient, field: dict[str, str]
) -> None:
    refused = await context_of(client, status=422, observe=True, **field)
    assert next(iter(field)) in refused["detail"]


@pytest.mark.wing("ledger")
@pytest.mark.usefixtures("database_url")
async def test_a_share_of_the_sessions_is_held_out(client: httpx.AsyncClient) -> None:
    held_out = next(name for name in NAMES if is_held_out(DEFAULT_TENANT, name, 0.3))
    enforced = next(name for name in NAMES if not is_held_out(DEFAULT_TENANT, name, 0.3))
    for session, view in ((held_out, "~observed"), (enforced, "main")):
        made = await context_of(client, session=session, holdout=0.3)
        assert made["view"] == view
        refusal = {"status": 400, "message": "prompt is too long: 210000 tokens > 200000 maximum"}
        said = await report(client, made["call_id"], session, error=refusal)
        assert said["action"] == ("retry" if view == "main" else "stop")
        status = 200 if view == "main" else 409
        await context_of(client, status, session, holdout=0.3, retry_of=made["call_id"])
        on_line = await context_of(client, session=made["line"], messages=None, holdout=0.3)
        assert on_line["view"] == view
        await report(client, on_line["call_id"], session, usage={"input_tokens": 9_000})
    await report(client, (await context_of(client, session=held_out))["call_id"], held_out, usage={"input_tokens": 1})
    found = (await ledger_of(client))["holdout"]
    assert {name: (found[name]["sessions"], found[name]["calls"]) for name in ("held_out", "enforced")} == {
        "held_out": (1, 1),
        "enforced": (1, 1),
    }


@pytest.mark.parametrize("body", [{"holdout": 0.1, "view": "main"}, {"holdout": 1.0}, {"holdout": -0.1}])
async def test_a_share_is_less_than_all_and_has_no_view_of_the_clients(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    await context_of(client, status=422, **body)


@pytest.mark.wing("compare")
async def test_no_request_can_name_the_view_of_observed_contexts(client: httpx.AsyncClient) -> None:
    await context_of(client, status=422, view="~observed")
    assert (await client.get("/v1/sessions/s/context", params={"view": "~observed"})).status_code == 422
    previewed = await client.post("/v1/sessions/s/context:preview", json={"view": "~observed"})
    assert previewed.status_code == 422
