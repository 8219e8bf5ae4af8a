"""Contexts over HTTP: within their target, valid, explained and recorded, with views independent of each other."""

import asyncio
import hashlib
import json

import httpx
import pytest

from app.store.engine import Database
from tests.support import validators

CHECKS = {
    "openai": validators.check_openai,
    "openai-responses": validators.check_openai_responses,
    "anthropic": validators.check_anthropic,
}


async def append(client: httpx.AsyncClient, events: list[dict], sid: str = "s") -> dict:
    answer = await client.post(f"/v1/sessions/{sid}/events", json={"events": events})
    assert answer.status_code == 201, answer.text
    return answer.json()


def turn_of_rounds(count: int, *, words: int = 200, first: int = 0) -> list[dict]:
    """Return the events of a turn with `count` tool rounds."""
    events: list[dict] = [{"type": "user.message", "content": f"Task {first}"}]
    for number in range(first, first + count):
        events += [
            {"type": "assistant.message", "content": f"Looking at file {number}."},
            {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"/f{number}"}},
            {"type": "tool.result", "call_id": f"c{number}", "content": f"file {number}\n" + "word " * words},
        ]
    return [*events, {"type": "assistant.message", "content": "Done."}]


async def context(client: httpx.AsyncClient, sid: str = "s", **params: object) -> dict:
    answer = await client.get(f"/v1/sessions/{sid}/context", params=params)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    canonical = json.dumps(body["request"], ensure_ascii=False, separators=(",", ":"))
    assert hashlib.sha256(canonical.encode()).hexdigest() == body["sha256"]
    assert body["tokens"]["estimate"] <= body["tokens"]["target"]
    assert sum(body["tokens"]["by_source"].values()) == body["tokens"]["estimate"]
    return body


@pytest.mark.parametrize("form", CHECKS)
async def test_a_small_session_is_shown_whole(client: httpx.AsyncClient, form: str) -> None:
    await append(client, [{"type": "system.prompt", "content": "Be brief."}, *turn_of_rounds(2)])
    body = await context(client, format=form, model="gpt-4o")
    CHECKS[form](body["request"])
    assert body["evictions"] == []
    assert body["head"] == 9
    text = json.dumps(body["request"])
    assert all(part in text for part in ("Be brief.", "Task 0", "file 0", "file 1", "Done."))


@pytest.mark.parametrize("form", CHECKS)
async def test_a_large_session_fits_and_names_what_was_left_out(client: httpx.AsyncClient, form: str) -> None:
    await append(client, [{"type": "system.prompt", "content": "Be brief."}])
    for turn in range(20):
        await append(client, turn_of_rounds(5, first=turn * 5, words=400))
    body = await context(client, format=form, max_tokens=10_000)
    CHECKS[form](body["request"])
    kinds = {row["disposition"] for row in body["evictions"]}
    assert kinds <= {"dropped", "stubbed"}
    assert body["evictions"]
    assert len(body["evictions"]) < 12
    dropped = [row for row in body["evictions"] if row["disposition"] == "dropped"]
    assert dropped
    assert dropped[0]["from_seq"] == 2
    assert "Left out of this context" in json.dumps(body["request"])
    again = await context(client, format=form, max_tokens=10_000)
    assert (again["sha256"], again["epoch"]) == (body["sha256"], body["epoch"])
    assert again["call_id"] != body["call_id"]


async def test_appending_within_an_epoch_only_extends(client: httpx.AsyncClient) -> None:
    for turn in range(10):
        await append(client, turn_of_rounds(4, first=turn * 4))
    before = await context(client, format="blocks", max_tokens=12_000)
    await append(client, turn_of_rounds(1, first=100, words=5))
    after = await context(client, format="blocks", max_tokens=12_000)
    assert after["epoch"] == before["epoch"]
    assert after["request"]["blocks"][: len(before["request"]["blocks"])] == before["request"]["blocks"]


async def test_a_view_changes_nothing_in_another(client: httpx.AsyncClient) -> None:
    for turn in range(10):
        await append(client, turn_of_rounds(5, first=turn * 5))
    first = await context(client, max_tokens=100_000, format="anthropic", model="claude-sonnet-4-5")
    small = await context(client, view="titles", max_tokens=8_000, model="gpt-4o")
    assert small["tokens"]["estimate"] < first["tokens"]["estimate"]
    second = await context(client, format="anthropic")
    assert (second["sha256"], second["epoch"]) == (first["sha256"], first["epoch"])
    assert second["tokens"]["limit"] == 100_000


async def test_a_view_keeps_its_settings_and_is_planned_again_when_they_change(client: httpx.AsyncClient) -> None:
    for turn in range(10):
        await append(client, turn_of_rounds(5, first=turn * 5))
    small = await context(client, max_tokens=8_000)
    kept = await context(client)
    grown = await context(client, max_tokens=200_000)
    assert kept["sha256"] == small["sha256"]
    assert {row["reducer"] for row in grown["evictions"]} <= {"economics"}  # no reducer that depends on the window
    assert grown["tokens"]["estimate"] > kept["tokens"]["estimate"]
    assert grown["epoch"] == small["epoch"] + 1
    causes = (await client.get("/v1/sessions/s/epochs")).json()["items"]
    assert [row["cause"] for row in causes] == ["budget", "window"]


async def test_an_open_call_is_shown_as_pending_and_then_answered(client: httpx.AsyncClient) -> None:
    await append(
        client, [{"type": "user.message", "content": "go"}, {"type": "tool.call", "call_id": "c", "tool": "t"}]
    )
    for form, check in CHECKS.items():
        body = await context(client, format=form)
        check(body["request"])
        assert "still running" in json.dumps(body["request"])
    await append(client, [{"type": "user.message", "content": "are you there?"}])
    waiting = await context(client)
    await append(client, [{"type": "tool.result", "call_id": "c", "content": "late news"}])
    for form, check in CHECKS.items():
        body = await context(client, format=form)
        check(body["request"])
        assert "late news" in json.dumps(body["request"])
        assert "still running" not in json.dumps(body["request"])
    assert body["epoch"] > waiting["epoch"]


async def test_a_new_system_prompt_opens_an_epoch_and_replaces_the_old(client: httpx.AsyncClient) -> None:
    await append(client, [{"type": "system.prompt", "content": "Old rules."}, *turn_of_rounds(1)])
    before = await context(client)
    await append(client, [{"type": "system.prompt", "content": "New rules."}])
    after = await context(client)
    assert after["epoch"] == before["epoch"] + 1
    assert "New rules." in json.dumps(after["request"])
    assert "Old rules." not in json.dumps(after["request"])
    assert [(e["from_seq"], e["disposition"]) for e in after["evictions"]] == [(1, "replaced")]


async def test_an_infeasible_context_is_refused_with_the_breakdown(client: httpx.AsyncClient) -> None:
    await append(
        client, [{"type": "system.prompt", "content": "rule " * 4000}, {"type": "user.message", "content": "x"}]
    )
    answer = await client.get("/v1/sessions/s/context", params={"max_tokens": 2_000})
    body = answer.json()
    assert (answer.status_code, body["type"]) == (422, "/problems/context-infeasible")
    assert body["minimum_tokens"] > body["target"]
    assert body["by_source"]["system"] > 4000
    assert (await client.get("/v1/sessions/s/epochs")).json()["items"] == []


async def test_a_huge_result_in_the_running_turn_is_shortened_head_and_tail(client: httpx.AsyncClient) -> None:
    text = "HEAD " + "x y " * 60_000 + " TAIL"
    await append(
        client,
        [
            {"type": "user.message", "content": "go"},
            {"type": "tool.call", "call_id": "c", "tool": "cat"},
            {"type": "tool.result", "call_id": "c", "content": text},
        ],
    )
    body = await context(client, max_tokens=8_000, format="anthropic", recall=True)
    validators.check_anthropic(body["request"])
    shown = json.dumps(body["request"])
    assert "HEAD" in shown
    assert "TAIL" in shown
    assert "recall them with seq 3" in shown
    assert [(e["disposition"], e["reducer"]) for e in body["evictions"]] == [("stubbed", "last_resort")]


async def test_pins_and_never_evict_hold(client: httpx.AsyncClient) -> None:
    policy = {"retention": {"keep_last": 1, "never_evict": ["plan"]}, "evict": "every_assembly", "recall": True}
    await client.put("/v1/sessions/s", json={"policy": policy})
    events = [{"type": "user.message", "content": "PINNED", "pinned": True}]
    for number, tool in enumerate(("plan", "read", "read", "read")):
        events += [
            {"type": "tool.call", "call_id": f"c{number}", "tool": tool},
            {"type": "tool.result", "call_id": f"c{number}", "content": f"head\n{tool}-{number} body " + "word " * 200},
        ]
    await append(client, events)
    shown = json.dumps((await context(client))["request"])
    assert "plan-0 body" in shown
    assert "read-3 body" in shown
    assert "read-1 body" not in shown
    assert "Recall it with seq 5" in shown
    for turn in range(30):
        await append(client, turn_of_rounds(2, first=100 + turn * 2))
    assert "PINNED" in json.dumps((await context(client, max_tokens=6_000))["request"])


async def test_retention_by_age_and_the_window_of_turns(client: httpx.AsyncClient) -> None:
    policy = {
        "retention": {"keep_last": None, "age_turns": 1, "min_tokens": 0, "tools": {"ask": {"age_turns": 3}}},
        "dialogue_window": {"turns": 3},
        "evict": "every_assembly",
    }
    await client.put("/v1/sessions/s", json={"policy": policy})
    for turn in range(5):
        events = [{"type": "user.message", "content": f"turn-{turn}"}]
        for tool in ("ask", "read"):
            events += [
                {"type": "tool.call", "call_id": f"{tool}{turn}", "tool": tool},
                {
                    "type": "tool.result",
                    "call_id": f"{tool}{turn}",
                    "content": f"head\n{tool}-{turn} body " + "word " * 200,
                },
            ]
        await append(client, events)
    body = await context(client)
    shown = json.dumps(body["request"])
    assert [f"turn-{n}" in shown for n in range(5)] == [False, False, True, True, True]
    assert [f"read-{n} body" in shown for n in range(2, 5)] == [False, False, True]
    assert [f"ask-{n} body" in shown for n in range(2, 5)] == [True, True, True]
    assert ("dropped", "dialogue_window") in {(e["disposition"], e["reducer"]) for e in body["evictions"]}


async def test_a_context_as_of_an_earlier_seq(client: httpx.AsyncClient) -> None:
    await append(client, turn_of_rounds(3))
    early = await context(client, at=4)
    await append(client, turn_of_rounds(30, first=10, words=800))
    small = await context(client, max_tokens=8_000)
    again = await context(client, at=4, max_tokens=8_000)
    assert early["head"] == again["head"] == 4
    assert again["request"] == early["request"]
    assert (await context(client, max_tokens=8_000))["sha256"] == small["sha256"]
    beyond = await client.get("/v1/sessions/s/context", params={"at": 10_000})
    assert (beyond.status_code, beyond.json()["type"]) == (422, "/problems/invalid-request")


async def test_injections_come_last_and_within_their_reserve(client: httpx.AsyncClient) -> None:
    await client.put("/v1/sessions/s", json={"policy": {"injection_reserve_tokens": 50}})
    await append(client, turn_of_rounds(1))
    plain = await context(client, format="blocks")
    answer = await client.post(
        "/v1/sessions/s/context", json={"format": "blocks", "injections": [{"name": "clock", "content": "It is noon."}]}
    )
    blocks = answer.json()["request"]["blocks"]
    assert blocks[:-1] == plain["request"]["blocks"]
    assert "It is noon." in json.dumps(blocks[-1])
    assert answer.json()["cache"]["prefix_sha256"] == plain["cache"]["prefix_sha256"]
    over = await client.post(
        "/v1/sessions/s/context", json={"injections": [{"name": "flood", "content": "word " * 100}]}
    )
    assert (over.status_code, over.json()["type"]) == (422, "/problems/injection-over-reserve")
    assert over.json()["name"] == "flood"


@pytest.mark.parametrize("policy", ["default", "timeline", "pipeline", "clip", "threshold"])
async def test_a_usual_injection_fits_under_every_preset(client: httpx.AsyncClient, policy: str) -> None:
    """An injection is fitted into its own call, and the next call has the old target."""
    await client.put("/v1/sessions/s", json={"policy": policy})
    await append(client, turn_of_rounds(4))
    plain = (await context(client, max_tokens=16_000))["tokens"]
    note = {"name": "clock", "content": "It is noon. " * 100}
    answer = await client.post("/v1/sessions/s/context", json={"max_tokens": 16_000, "injections": [note]})
    assert answer.status_code == 200, answer.text
    tokens = answer.json()["tokens"]
    took = tokens["by_source"]["ephemeral"] - plain["by_source"]["ephemeral"]
    assert took >= 200
    assert plain["target"] - tokens["target"] == pytest.approx(took, rel=0.05, abs=2)
    assert "It is noon." in json.dumps(answer.json()["request"])
    assert (await context(client, max_tokens=16_000))["tokens"]["target"] == plain["target"]


async def test_an_injection_takes_no_more_than_an_eighth_of_the_window(client: httpx.AsyncClient) -> None:
    await append(client, turn_of_rounds(1))
    flood = {"name": "flood", "content": "word " * 3_000}
    over = await client.post("/v1/sessions/s/context", json={"max_tokens": 8_000, "injections": [flood]})
    assert (over.status_code, over.json()["type"]) == (422, "/problems/injection-over-reserve")
    assert (over.json()["name"], over.json()["reserve"]) == ("flood", 1_000)


async def test_a_full_context_makes_room_for_an_injection(client: httpx.AsyncClient) -> None:
    await append(client, turn_of_rounds(60))
    await context(client, max_tokens=8_000)
    note = {"name": "facts", "content": "It is noon. " * 200}
    answer = await client.post("/v1/sessions/s/context", json={"max_tokens": 8_000, "injections": [note]})
    tokens = answer.json()["tokens"]
    assert tokens["estimate"] <= tokens["limit"] - tokens["reserve"]


async def test_every_call_is_recorded_before_it_is_answered(client: httpx.AsyncClient, database: Database) -> None:
    await append(client, turn_of_rounds(3))
    for form in (*CHECKS, "blocks"):
        body = await context(client, format=form)
        row = await database.fetchrow("SELECT * FROM model_calls WHERE call_id = :id::uuid", id=body["call_id"])
        assert row is not None
        assert row["sha256"].hex() == body["sha256"]
        assert (row["head"], row["epoch"], row["format"]) == (body["head"], body["epoch"], form)
        assert len(row["manifest"]) < 2048


async def test_concurrent_calls_agree_on_the_epoch(client: httpx.AsyncClient) -> None:
    for turn in range(20):
        await append(client, turn_of_rounds(5, first=turn * 5))
    bodies = await asyncio.gather(*(context(client, max_tokens=10_000) for _ in range(10)))
    assert len({body["sha256"] for body in bodies}) == 1
    assert {body["epoch"] for body in bodies} == {1}


async def test_an_empty_session_has_nothing_to_send(client: httpx.AsyncClient) -> None:
    await client.put("/v1/sessions/s", json={})
    for form in CHECKS:
        answer = await client.get("/v1/sessions/s/context", params={"format": form})
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/nothing-to-send")
    assert (await context(client, format="blocks"))["request"] == {"blocks": []}


async def test_bad_context_requests_are_problems(client: httpx.AsyncClient) -> None:
    await append(client, turn_of_rounds(1))
    for params in ({"format": "xml"}, {"max_tokens": 0}, {"view": "a/b"}, {"at": 0}):
        answer = await client.get("/v1/sessions/s/context", params=params)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), params
    unknown = await client.post("/v1/sessions/s/context", json={"colour": "red"})
    assert unknown.json()["type"] == "/problems/invalid-request"
    policy = await client.post("/v1/sessions/s/context", json={"policy": {"low_water": 2}})
    assert (policy.json()["type"], policy.json()["knob"]) == ("/problems/invalid-policy", "low_water")


async def test_a_cache_ttl_of_an_hour_is_written_into_the_markers(client: httpx.AsyncClient) -> None:
    await append(client, turn_of_rounds(20, words=400))
    asked = {"format": "anthropic", "model": "claude-sonnet-4-5", "policy": {"cache": {"ttl_seconds": 3600}}}
    answer = await client.post("/v1/sessions/s/context", json=asked)
    body = answer.json()
    validators.check_anthropic(body["request"])
    assert body["cache"]["breakpoints"]
    markers = json.dumps(body["request"]).count('"cache_control"')
    assert json.dumps(body["request"]).count('{"type": "ephemeral", "ttl": "1h"}') == markers > 0


@pytest.mark.wing("audit")
async def test_a_result_shown_once_is_not_cached_and_becomes_a_stub(client: httpx.AsyncClient) -> None:
    policy = {"retention": {"min_tokens": 0}, "economics": {"once_tokens": 1_000}, "recall": True}
    await client.put("/v1/sessions/s", json={"policy": policy})
    *log, _ = turn_of_rounds(3, words=1_500)
    await append(client, [{"type": "system.prompt", "content": "Be brief. " * 1_000}, *log])
    asked = {"format": "anthropic", "model": "claude-sonnet-4-5"}
    first = await context(client, **asked)
    assert [point["seq"] for point in first["cache"]["breakpoints"]][-1] == first["head"] - 1
    marker = '"cache_control"'
    assert marker not in json.dumps(first["request"]["messages"][-1])
    await append(
        client, [{"type": "assistant.message", "content": "Read."}, {"type": "user.message", "content": "So?"}]
    )
    second = await context(client, **asked)
    validators.check_anthropic(second["request"])
    assert (second["epoch"], second["cache"]["breakpoints"][-1]["seq"]) == (first["epoch"] + 1, second["head"])
    gone = [(one["reason"], one["to_seq"]) for one in second["evictions"] if one["reducer"] == "once"]
    assert gone == [("seen_once", first["head"])]
    for made in (first, second):
        again = (await client.get(f"/v1/sessions/s/calls/{made['call_id']}/context")).json()
        assert (again["sha256"], again["request"]) == (made["sha256"], made["request"])
