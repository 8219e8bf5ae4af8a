"""The `native` field of events: it can be posted as it was read, and other values are refused."""

from typing import Any

import httpx
import pytest

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
MESSAGES = [
    {"role": "user", "content": "hi", "name": "ann"},
    {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": ""},
]
SERVER_FIELDS = {"seq", "turn", "tokens", "created_at"}
HEAD: dict[str, Any] = {"format": "openai", "head": {}}


async def test_a_log_can_be_posted_as_it_was_read(client: httpx.AsyncClient) -> None:
    sent = {"format": "openai", "messages": MESSAGES}
    (await client.post("/v1/sessions/a/messages", json=sent)).raise_for_status()
    read = (await client.get("/v1/sessions/a/events")).json()["items"]
    assert read[1]["native"]["head"] == {"content": None, "refusal": None}
    events = [{name: value for name, value in event.items() if name not in SERVER_FIELDS} for event in read]
    posted = await client.post("/v1/sessions/b/events", json={"events": events})
    assert posted.status_code == 201
    assert [event["tokens"] for event in posted.json()["events"]] == [event["tokens"] for event in read]
    again = await client.post("/v1/sessions/b/events", json={"events": events})
    assert (again.status_code, again.json()["events"]) == (200, posted.json()["events"])
    contexts = [(await client.get(f"/v1/sessions/{sid}/context?format=openai")).json() for sid in "ab"]
    assert contexts[0]["request"]["messages"] == MESSAGES
    assert contexts[0]["sha256"] == contexts[1]["sha256"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "user.message", "content": "x", "native": {}},
        {"type": "user.message", "content": "x", "native": {"format": "blocks", "head": {}}},
        {"type": "user.message", "content": "x", "native": {"format": ["openai"], "head": {}}},
        {"type": "user.message", "content": "x", "native": {"format": "openai", "head": []}},
        {"type": "user.message", "content": "x", "native": {**HEAD, "more": 1}},
        {"type": "user.message", "content": "x", "native": {**HEAD, "part": [1]}},
        {"type": "user.message", "content": "x", "native": {**HEAD, "head": {"content": "y"}}},
        {"type": "user.message", "content": "x", "native": {**HEAD, "head": {"role": "assistant"}}},
        {"type": "user.message", "content": [{"no": "type", "type": 3}], "native": HEAD},
        {"type": "user.message", "native": {"format": "openai-responses", "head": {}, "part": {"item": True}}},
        {"type": "assistant.message", "content": "x", "native": {**HEAD, "head": {"tool_calls": [CALL]}}},
        {"type": "assistant.message", "content": [], "native": {"format": "openai-responses", "part": {"item": True}}},
        {"type": "tool.call", "call_id": "c", "tool": "t", "native": {**HEAD, "part": {"custom": True}}},
        {"type": "tool.call", "call_id": "c", "tool": "t", "native": {**HEAD, "part": {"call": "x"}}},
        {"type": "tool.call", "call_id": "c", "tool": "t", "native": {**HEAD, "part": {"custom": {"input": {}}}}},
        {"type": "tool.call", "call_id": "c", "tool": "t", "native": {"format": "openai-responses", "head": {}}},
        {"type": "tool.call", "call_id": "c", "tool": "t", "native": {"format": "anthropic", "part": {"id": "d"}}},
        {"type": "turn.start", "native": HEAD},
        {"type": "tools", "content": [], "native": HEAD},
        {"type": "agent.note", "content": "x", "native": {"format": "anthropic", "head": {}}},
    ],
)
async def test_native_fields_that_no_message_yields_are_refused(
    refusing: httpx.AsyncClient, event: dict[str, Any]
) -> None:
    answer = await refusing.post("/v1/sessions/s/events", json={"events": [event]})
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["type"].endswith("/invalid-event")
    assert (await refusing.get("/v1/sessions/s")).status_code == 404
