"""Unusual content over HTTP: it is logged, found and returned unchanged, and valid in the other formats."""

import json
from typing import Any

import httpx
import pytest

from tests.support import validators

Json = dict[str, Any]

CHECKS = {
    "openai": validators.check_openai,
    "openai-responses": validators.check_openai_responses,
    "anthropic": validators.check_anthropic,
}
MEMBER = {"openai": "messages", "openai-responses": "input", "anthropic": "messages"}
MALFORMED = [
    '{"a": tr',
    "[1]",
    "null",
    '{"a": NaN}',
    "",
    "  ",
    '"text"',
    "7",
    '{"a": "\x00"}',
    "[" * 100_000,
    '{"a":' * 90,
]
ODD = "before\x00after \U0001f408 \ufdd0 \ufdd00000 \\u0000 \\\x00 end"
LONE = "cut \ud83d here"


def body_of(raw: Any) -> bytes:
    """Return JSON with lone surrogates escaped, as a client sends them."""
    return json.dumps(raw).encode()


async def post(http: httpx.AsyncClient, path: str, raw: Any, **headers: str) -> httpx.Response:
    return await http.post(path, content=body_of(raw), headers={"content-type": "application/json", **headers})


def unmarked(messages: list[Json]) -> list[Json]:
    """Return messages without cache markers."""
    found: list[Json] = json.loads(json.dumps(messages).replace(', "cache_control": {"type": "ephemeral"}', ""))
    return found


async def context(http: httpx.AsyncClient, form: str, **more: Any) -> Json:
    answer = await http.get("/v1/sessions/s/context", params={"format": form, **more})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    again = await http.get(f"/v1/sessions/s/calls/{body['call_id']}/context")
    assert again.json()["sha256"] == body["sha256"]
    return body


def chat(arguments: Any, result: Any = "no") -> list[Json]:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": arguments}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]


def responses(arguments: Any, result: Any = "no") -> list[Json]:
    return [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": result},
    ]


def anthropic(arguments: Any, result: Any = "no") -> list[Json]:
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": arguments}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": result}]},
    ]


CONVERSATIONS = {"openai": chat, "openai-responses": responses, "anthropic": anthropic}


def arguments_of(form: str, request: Json) -> Any:
    """Return the arguments of a request's only call."""
    if form == "openai":
        return request["messages"][1]["tool_calls"][0]["function"]["arguments"]
    return (
        request["input"][1]["arguments"]
        if form == "openai-responses"
        else request["messages"][1]["content"][0]["input"]
    )


@pytest.mark.wing("audit")
@pytest.mark.parametrize("form", ["openai", "openai-responses"])
@pytest.mark.parametrize("arguments", MALFORMED, ids=range(len(MALFORMED)))
async def test_malformed_arguments_round_trip_and_are_valid_in_other_formats(
    client: httpx.AsyncClient, form: str, arguments: str
) -> None:
    said = CONVERSATIONS[form](arguments)
    answer = await post(client, "/v1/sessions/s/messages", {"format": form, "messages": said})
    assert answer.status_code == 201, answer.text
    log = (await client.get("/v1/sessions/s/events")).json()["items"]
    assert log[1]["arguments"] == arguments
    for other, check in CHECKS.items():
        request = (await context(client, other))["request"]
        if other == form:
            assert request[MEMBER[form]] == said
            continue
        check(request)
        found = arguments_of(other, request)
        found = json.loads(found) if isinstance(found, str) else found
        nearest = {'{"a": NaN}': {"a": "NaN"}, '{"a": "\x00"}': {"invalid_arguments": arguments}}
        nearest |= {text: {} for text in ("null", "", "  ")}
        assert found == nearest.get(arguments, {"invalid_arguments": arguments})


@pytest.mark.wing("audit")
@pytest.mark.parametrize("value", [None, [1], "text", '{"a": tr', 7, True, {"a": "\x00"}])
async def test_anthropic_input_that_is_no_object_becomes_one(client: httpx.AsyncClient, value: Any) -> None:
    said = {"format": "anthropic", "messages": anthropic(value)}
    assert (await post(client, "/v1/sessions/s/messages", said)).status_code == 201
    for other, check in CHECKS.items():
        check((await context(client, other))["request"])
    log = (await client.get("/v1/sessions/s/events")).json()["items"]
    assert log[1].get("arguments") == value


@pytest.mark.wing("audit")
@pytest.mark.parametrize("value", [*MALFORMED, [1], 7, {"a": LONE}])
async def test_neutral_arguments_are_kept_unchanged(client: httpx.AsyncClient, value: Any) -> None:
    events = [
        {"type": "user.message", "content": "go"},
        {"type": "tool.call", "call_id": "c", "tool": "read", "arguments": value},
        {"type": "tool.result", "call_id": "c", "content": "done"},
    ]
    answer = await post(client, "/v1/sessions/s/events", {"events": events})
    assert answer.status_code == 201, answer.text
    assert (await client.get("/v1/sessions/s/events/2")).json()["arguments"] == value
    for form, check in CHECKS.items():
        check((await context(client, form))["request"])


@pytest.mark.wing("audit")
@pytest.mark.parametrize("form", CHECKS)
async def test_nul_characters_in_tool_results_round_trip(client: httpx.AsyncClient, form: str) -> None:
    said = CONVERSATIONS[form]('{"path": "x"}' if form != "anthropic" else {"path": "x"}, ODD)
    answer = await post(client, "/v1/sessions/s/messages", {"format": form, "messages": said})
    assert answer.status_code == 201, answer.text
    for other, check in CHECKS.items():
        request = (await context(client, other))["request"]
        check(request)
        assert json.dumps(ODD)[1:-1] in json.dumps(request)
        if other == form:
            assert unmarked(request[MEMBER[form]]) == said
    log = (await client.get("/v1/sessions/s/events")).json()["items"]
    assert log[2]["content"] == ODD


@pytest.mark.wing("audit")
@pytest.mark.parametrize("form", CHECKS)
async def test_a_lone_surrogate_is_kept_and_every_provider_can_read_the_request(
    client: httpx.AsyncClient, form: str
) -> None:
    """No provider's parser accepts a lone surrogate, and most clients cannot send one."""
    said = CONVERSATIONS[form]({"path": LONE} if form == "anthropic" else json.dumps({"path": "x"}), LONE)
    answer = await post(client, "/v1/sessions/s/messages", {"format": form, "messages": said})
    assert answer.status_code == 201, answer.text
    log = (await client.get("/v1/sessions/s/events")).json()["items"]
    assert log[2]["content"] == LONE
    for other, check in CHECKS.items():
        request = (await context(client, other))["request"]
        check(request)
        text = json.dumps(request, ensure_ascii=False)
        text.encode()
        assert "cut \ufffd here" in text


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
async def test_nul_and_surrogates_in_content_work_in_every_operation(client: httpx.AsyncClient) -> None:
    odd = f"{ODD} {LONE} needle-4711 " + "word " * 4_000
    events: list[Json] = [
        {"type": "turn.start", "turn_id": "t1"},
        {"type": "user.message", "content": ODD, "turn_id": "t1", "metadata": {"\x00": "\x00", LONE: LONE}},
        {"type": "tool.call", "id": "call", "call_id": "c", "tool": "read", "arguments": {"path": f"/a{ODD}"}},
        {"type": "tool.result", "id": "odd", "call_id": "c", "content": odd, "path": f"/p{LONE}", "replacement": ODD},
        {"type": "system.message", "content": f"Never {ODD} {LONE} delete."},
        {"type": "assistant.message", "content": [{"type": "text", "text": odd}, {"type": "hologram", "x": LONE}]},
        {"type": "turn.end", "turn_id": "t1"},
        {"type": "user.message", "content": "go on"},
    ]
    first = await post(client, "/v1/sessions/s/events", {"events": events}, **{"Idempotency-Key": "k"})
    assert first.status_code == 201, first.text
    again = await post(client, "/v1/sessions/s/events", {"events": events}, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (200, first.json())
    repeated = await post(client, "/v1/sessions/s/events", {"events": [events[2], events[3]]})
    assert repeated.status_code == 200, repeated.text
    other = {**events[3], "content": odd.replace("\x00", "")}
    assert (await post(client, "/v1/sessions/s/events", {"events": [other]})).status_code == 409
    found = await client.post("/v1/sessions/s/recall", json={"query": "needle-4711"})
    assert found.status_code == 200, found.text
    assert 4 in [item["seq"] for item in found.json()["items"]]
    log = (await client.get("/v1/sessions/s/events")).json()["items"]
    for logged, event in zip(log, events, strict=True):
        assert {name: logged[name] for name in event} == event
    small = (await post(client, "/v1/sessions/s/context", {"max_tokens": 8_000})).json()
    assert small["evictions"]
    hidden = await client.patch("/v1/sessions/s/visibility", json={"hide": [{"seq": 4, "replacement": "gone"}]})
    assert hidden.status_code == 200, hidden.text
    injection = [{"name": "n", "content": "plain"}]
    policy = {"injection_reserve_tokens": 1_000, "window_tokens": 60_000}
    asked = {"view": "v", "policy": policy, "injections": injection, "format": "anthropic"}
    injected = await post(client, "/v1/sessions/s/context", asked)
    assert injected.status_code == 200, injected.text
    for id in (small["call_id"], injected.json()["call_id"]):
        rendered = await client.get(f"/v1/sessions/s/calls/{id}/context")
        assert rendered.status_code == 200, rendered.text
        assert (await client.get(f"/v1/sessions/s/calls/{id}")).status_code == 200
    assert (await client.post("/v1/sessions/s/fork", json={"at": 8, "id": "f"})).status_code == 201
    assert (await client.post("/v1/sessions/s/fork", json={"at": 5, "id": "g"})).status_code == 201
    assert (await client.get("/v1/sessions/f/context")).status_code == 200
    assert (await client.get("/v1/sessions/g/context")).status_code == 200
    assert (await client.get("/v1/sessions/s/coverage")).json()["ok"]
    assert (await client.delete("/v1/sessions/s/events/4")).status_code == 204
    assert (await client.get("/v1/sessions/s/context")).status_code == 200


async def test_nul_and_surrogates_in_identifiers_are_refused(client: httpx.AsyncClient) -> None:
    call = {"type": "tool.call", "call_id": "c", "tool": "read"}
    user = {"type": "user.message", "content": "go"}
    for event, field in [
        ({**user, "id": "a\x00"}, "id"),
        ({**user, "turn_id": "a\ud800"}, "turn_id"),
        ({**user, "author": "\x00"}, "author"),
        ({**call, "call_id": "c\x00"}, "call_id"),
        ({**call, "tool": "\udfff"}, "tool"),
    ]:
        answer = await post(client, "/v1/sessions/s/events", {"events": [event]})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


@pytest.mark.wing("recall")
@pytest.mark.parametrize(
    "when",
    ["yesterday", "2024-01-01T10:00:00", "2016-12-31T23:59:60Z", "0001-01-01T00:00:00+14:00", 1_700_000_000, 1.5],
)
async def test_any_occurred_at_is_accepted(client: httpx.AsyncClient, when: Any) -> None:
    event = {"type": "user.message", "content": "go", "occurred_at": when, "ttl_seconds": 5}
    answer = await client.post(
        "/v1/sessions/s/events", json={"events": [event, {"type": "user.message", "content": "x"}]}
    )
    assert answer.status_code == 201, answer.text
    assert (await client.get("/v1/sessions/s/events/1")).json()["occurred_at"] == when
    assert (await client.get("/v1/sessions/s/context")).status_code == 200
    assert (await client.post("/v1/sessions/s/recall", json={"query": "go"})).status_code == 200


@pytest.mark.parametrize("form", CHECKS)
async def test_unknown_and_empty_parts_are_accepted(client: httpx.AsyncClient, form: str) -> None:
    text = {"openai": "text", "openai-responses": "input_text", "anthropic": "text"}[form]
    content = [{"type": text, "text": None}, {"type": "hologram", "depth": [1]}, {"note": "no type"}, {"type": text}]
    said = [
        {"role": "user", "content": content},
        {"role": "user", "content": None},
        {"role": "assistant", "content": None},
    ]
    answer = await client.post("/v1/sessions/s/messages", json={"format": form, "messages": said})
    assert answer.status_code == 201, answer.text
    log = (await client.get("/v1/sessions/s/events")).json()["items"]
    assert log[0]["content"] == content
    for other in CHECKS:
        assert (await client.get("/v1/sessions/s/context", params={"format": other})).status_code == 200
