"""Outcomes over HTTP: what is recorded, the recommended action, and what a report must not change."""

import json
from typing import Any

import httpx
import pytest

from app.runtime.settings import Settings
from app.store.engine import Database
from tests.conftest import Servers, serving
from tests.support.requesting import Loopback
from tests.support.statements import ServerLog

TOO_LONG = {"error": {"status": 400, "message": "prompt is too long: 215000 tokens > 200000 maximum"}}
BUSY = {"error": {"status": 529, "message": "Overloaded"}}
USED = {"usage": {"input_tokens": 1_000, "output_tokens": 10}}


async def append(client: httpx.AsyncClient, *events: dict[str, Any], sid: str = "s") -> None:
    (await client.post(f"/v1/sessions/{sid}/events", json={"events": list(events)})).raise_for_status()


async def context(client: httpx.AsyncClient, status: int = 200, sid: str = "s", **asks: Any) -> dict[str, Any]:
    answer = await client.post(f"/v1/sessions/{sid}/context", json=asks)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def report(
    client: httpx.AsyncClient, call: dict[str, Any] | str, outcome: dict[str, Any], status: int = 200, sid: str = "s"
) -> dict[str, Any]:
    call_id = call if isinstance(call, str) else call["call_id"]
    answer = await client.post(f"/v1/sessions/{sid}/calls/{call_id}/outcome", json=outcome)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def stored(database: Database, call: dict[str, Any]) -> dict[str, Any]:
    row = await database.fetchrow("SELECT * FROM model_calls WHERE call_id = :id::text::uuid", id=call["call_id"])
    assert row is not None
    return dict(row)


@pytest.fixture
async def call(client: httpx.AsyncClient) -> dict[str, Any]:
    """A call of a session with some turns."""
    for number in range(20):
        await append(
            client,
            {"type": "user.message", "content": f"question {number}"},
            {"type": "assistant.message", "content": "some words " * 100},
        )
    await append(client, {"type": "user.message", "content": "and now?"})
    return await context(client, format="anthropic", model="claude-x", max_tokens=20_000)


async def test_a_successful_call_needs_no_action(
    client: httpx.AsyncClient, call: dict[str, Any], database: Database
) -> None:
    usage = {"input_tokens": 200, "cache_read_tokens": 4_000, "cache_write_tokens": 300, "output_tokens": 77}
    assert await report(client, call, {"usage": usage, "latency_ms": 1_234}) == {"overflow": False, "action": "none"}
    row = await stored(database, call)
    assert row["input_tokens"] == 4_500  # Anthropic's own figure excludes cached tokens
    assert (row["cache_read_tokens"], row["cache_write_tokens"], row["output_tokens"]) == (4_000, 300, 77)
    assert (row["latency_ms"], row["error"], row["overflow"]) == (1_234, None, False)
    assert row["reported_at"] is not None


async def test_input_tokens_of_other_formats_include_cached_tokens(
    client: httpx.AsyncClient, database: Database
) -> None:
    await append(client, {"type": "user.message", "content": "hello"})
    call = await context(client, format="openai", model="gpt-4o")
    await report(client, call, {"usage": {"input_tokens": 200, "cache_read_tokens": 150}})
    assert (await stored(database, call))["input_tokens"] == 200


async def test_an_overflow_is_retried_once_and_then_stopped(
    client: httpx.AsyncClient, call: dict[str, Any], database: Database
) -> None:
    verdict = await report(client, call, TOO_LONG)
    assert (verdict["overflow"], verdict["action"]) == (True, "retry")
    assert verdict["matched"] == {
        "set": "anthropic",
        "pattern": "prompt is too long",
        "tokens": 215_000,
        "window": 200_000,
    }
    assert verdict["next"] == {
        "method": "POST",
        "path": "/v1/sessions/s/context",
        "body": {
            "retry_of": call["call_id"],
            "view": "main",
            "format": "anthropic",
            "model": "claude-x",
            "max_tokens": 20_000,
            "wait_ms": 10_000,
        },
    }
    at_once = {**verdict["next"]["body"], "wait_ms": 0}  # there is no worker to wait for
    again = (await client.post(verdict["next"]["path"], json=at_once)).json()
    assert again["tokens"]["estimate"] < call["tokens"]["estimate"]
    assert (again["format"], again["model"], again["epoch"]) == ("anthropic", "claude-x", call["epoch"] + 1)
    assert str((await stored(database, again))["retry_of"]) == call["call_id"]
    last = await report(client, again, TOO_LONG)
    assert (last["overflow"], last["action"]) == (True, "stop")
    assert "next" not in last
    assert (await context(client, 409, retry_of=again["call_id"]))["type"] == "/problems/conflict"


async def test_a_retry_has_its_calls_settings(client: httpx.AsyncClient) -> None:
    await client.put("/v1/policies/roomy", json={"injection_reserve_tokens": 500})
    for number in range(8):
        await append(
            client,
            {"type": "user.message", "content": f"question {number}"},
            {"type": "assistant.message", "content": "some words " * 100},
        )
    injections = [{"name": "clock", "content": "It is noon."}]
    call = await context(
        client,
        view="side",
        policy="roomy",
        format="openai-responses",
        model="m",
        max_tokens=9_000,
        injections=injections,
    )
    await report(client, call, TOO_LONG)
    again = await context(client, retry_of=call["call_id"])
    assert (again["view"], again["format"], again["model"]) == ("side", "openai-responses", "m")
    assert again["tokens"]["limit"] == 9_000
    assert "It is noon." in json.dumps(again["request"])
    other = await context(client, retry_of=call["call_id"], format="openai", injections=[])
    assert other["format"] == "openai"
    assert "It is noon." not in json.dumps(other["request"])


async def test_a_repeated_report_gets_the_same_response_and_another_one_a_conflict(
    client: httpx.AsyncClient, call: dict[str, Any], database: Database
) -> None:
    first = await report(client, call, TOO_LONG)
    before, known = await stored(database, call), (await client.get("/v1/calibrations")).json()
    assert await report(client, call, TOO_LONG) == first
    assert (await report(client, call, USED, 409))["type"] == "/problems/conflict"
    assert (await report(client, call, BUSY, 409))["type"] == "/problems/conflict"
    assert await stored(database, call) == before
    assert (await client.get("/v1/calibrations")).json() == known


async def test_after_another_error_the_call_may_be_reported_again(
    client: httpx.AsyncClient, call: dict[str, Any], database: Database
) -> None:
    assert await report(client, call, BUSY) == {"overflow": False, "action": "none"}
    assert (await client.get("/v1/calibrations")).json()["items"] == []
    assert await report(client, call, USED) == {"overflow": False, "action": "none"}
    row = await stored(database, call)
    assert (row["input_tokens"], row["error"]) == (1_000, None)
    await report(client, call, BUSY, 409)


async def test_a_report_of_a_process_that_made_the_call_is_one_statement(database_url: str) -> None:
    """The rows that it depends on are as the report before has left them, and so are the expected cache reads."""
    log = await ServerLog.begin(database_url)
    usage = {"input_tokens": 200, "cache_read_tokens": 4_000, "output_tokens": 77}
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, transport=Loopback()) as http,
    ):
        for number in range(3):
            await append(http, {"type": "user.message", "content": f"question {number}"})
            made = await context(http, format="anthropic", model="claude-x")
            before = len(log.statements())
            await report(http, made, {"usage": usage})
        asked = [one.sql for one in log.statements()[before:] if not one.sql.startswith("SET")]
    assert [sql.split()[0].strip(";") for sql in asked] == ["WITH"], asked


async def test_reports_of_two_servers_follow_from_each_other(servers: Servers, database: Database) -> None:
    """A server's report finds the view as the other's report has left it, not as it was after its own last one."""
    for number in range(9):
        for sid, http in (("a", servers[0]), ("b", servers[number // 2 % 2])):
            await append(http, {"type": "user.message", "content": f"question {number} " * 50}, sid=sid)
            made = await context(http, sid=sid, model=f"model-{sid}", max_tokens=8_000)
            await report(http, made, {"usage": {"input_tokens": 100 * (number + 1) + number % 3}}, sid=sid)
    views = await database.fetch("SELECT v.* FROM views v JOIN sessions s USING (session_id) ORDER BY s.external_id")
    learned = [json.loads(view["learned"]) for view in views]
    points = [[point[:2] for point in one["points"]] for one in learned]
    assert len(points[0]) == 9
    assert points[0] == points[1]
    assert learned[0]["known"][:4] == learned[1]["known"][:4]
    for name in ("learned_version", "target", "reported_head", "reported_tokens", "reported_counted"):
        assert views[0][name] == views[1][name], name
    models = (await servers[0].get("/v1/calibrations")).json()["items"]
    assert [one["samples"] for one in models] == [9, 9]
    assert models[0]["ratio"] == models[1]["ratio"]


async def test_a_forgotten_calibration_is_learned_anew(client: httpx.AsyncClient) -> None:
    for number in range(8):
        await append(client, {"type": "user.message", "content": f"question {number} " * 50})
        made = await context(client, model="m", max_tokens=8_000)
        if number == 5:
            await client.delete("/v1/calibrations")
        await report(client, made, {"usage": {"input_tokens": 100 * (number + 1)}})
    assert [one["samples"] for one in (await client.get("/v1/calibrations")).json()["items"]] == [3]


@pytest.mark.parametrize(
    "outcome",
    [
        {},
        {"usage": {}},
        {"usage": None, "error": None},
        {"usage": {"input_tokens": -1}},
        {"usage": {"input_tokens": 2**31}},
        {"usage": {"tokens": 3}},
        {"error": {"kind": "overflow"}},
        {"latency": 3},
    ],
)
async def test_an_empty_or_invalid_report_is_refused(
    client: httpx.AsyncClient, call: dict[str, Any], outcome: dict[str, Any], database: Database
) -> None:
    assert (await report(client, call, outcome, 422))["type"] == "/problems/invalid-request"
    assert (await stored(database, call))["reported_at"] is None


async def test_unknown_calls_are_404(client: httpx.AsyncClient, call: dict[str, Any]) -> None:
    nobody = "00000000-0000-7000-8000-000000000000"
    await report(client, nobody, USED, 404)
    await append(client, {"type": "user.message", "content": "hi"}, sid="other")
    await report(client, call, USED, 404, sid="other")
    await report(client, call, USED, 404, sid="none")
    await report(client, "nonsense", USED, 422)
    await context(client, 404, retry_of=nobody)
    await context(client, 404, sid="other", retry_of=call["call_id"])


async def test_only_an_overflow_is_retried_and_only_in_its_own_view(
    client: httpx.AsyncClient, call: dict[str, Any]
) -> None:
    await context(client, 409, retry_of=call["call_id"])
    await report(client, call, TOO_LONG)
    await context(client, 422, retry_of=call["call_id"], view="other")
    await context(client, 422, retry_of=call["call_id"], at=3)


async def test_a_retry_of_a_context_that_cannot_shrink_repeats_it(client: httpx.AsyncClient) -> None:
    await append(client, {"type": "user.message", "content": "some words " * 1_000})  # the running turn, which stays
    call = await context(client, model="m", max_tokens=8_000)
    await report(client, call, {"error": {"message": "context_length_exceeded"}})
    again = await context(client, retry_of=call["call_id"])
    assert again["request"] == call["request"]
    assert again["tokens"]["estimate"] <= again["tokens"]["target"]


@pytest.mark.wing("compare")
async def test_a_preview_of_a_retry_equals_the_retry(client: httpx.AsyncClient, call: dict[str, Any]) -> None:
    await report(client, call, TOO_LONG)
    shown = await client.post("/v1/sessions/s/context:preview", json={"retry_of": call["call_id"]})
    assert shown.status_code == 200, shown.text
    assert shown.json()["sha256"] == (await context(client, retry_of=call["call_id"]))["sha256"]


@pytest.mark.wing("telemetry")
async def test_overflows_are_counted(client: httpx.AsyncClient, call: dict[str, Any]) -> None:
    def count(page: str, name: str) -> float:
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))

    names = (
        'palimpsest_overflows_total{set="anthropic"}',
        "palimpsest_overflow_retries_total",
        "palimpsest_estimate_off_ratio_count",
    )
    before = (await client.get("/metrics")).text
    await report(client, call, TOO_LONG)
    again = await context(client, retry_of=call["call_id"])
    await report(client, again, USED)
    after = (await client.get("/metrics")).text
    assert [count(after, name) - count(before, name) for name in names] == [1, 1, 1]


async def test_call_records_are_immutable_but_for_their_outcome(call: dict[str, Any], database: Database) -> None:
    for change in ("sha256 = '\\x00'", "estimate = 1", "retry_of = call_id", "manifest = '{}'"):
        with pytest.raises(Exception, match="immutable but for their outcome"):
            await database.execute(f"UPDATE model_calls SET {change}")
    assert (await stored(database, call))["retry_of"] is None
