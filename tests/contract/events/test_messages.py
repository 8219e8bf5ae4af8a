"""Provider-native messages are returned as they were sent when rendered in the same format."""

import httpx
import pytest

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPhfDwAChAGAZ1n4zgAAAABJRU5ErkJggg=="

OPENAI = [
    {"role": "system", "content": "You are terse."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        ],
        "name": "ann",
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "a cat"},
    {"role": "tool", "tool_call_id": "call_2", "content": ""},
    {"role": "assistant", "content": "A cat.", "refusal": None},
    {"role": "user", "content": "Say something bad"},
    {"role": "assistant", "content": None, "refusal": "I will not."},
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "ünïcödé 🐈"},
]

ANTHROPIC = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Look"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "eA=="},
            {"type": "text", "text": "I will look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}},
            {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "cat"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": True},
            {"type": "text", "text": "Go on."},
        ],
    },
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "Thanks"},
]

RESPONSES = [
    {"role": "user", "content": "What time is it?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "clock",
        "arguments": "{}",
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "noon"}},
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Noon.", "annotations": []}],
    },
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
]


GEMINI = [
    {"role": "user", "parts": [{"text": "Look"}, {"inlineData": {"mimeType": "image/png", "data": PIXEL}}]},
    {
        "role": "model",
        "parts": [
            {"text": "Let me see.", "thought": True},
            {"functionCall": {"name": "look", "args": {"a": 1}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "look", "args": {}}},
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "look", "response": {"result": "cat"}}},
            {"functionResponse": {"name": "look", "response": {"error": "no such file"}}},
        ],
    },
    {"role": "model", "parts": [{"text": "A cat."}, {"text": "", "thoughtSignature": "ZW5k"}]},
    {"role": "user", "parts": [{"text": "Thanks"}]},
]


@pytest.mark.parametrize(
    ("form", "messages", "member"),
    [
        ("openai", OPENAI, "messages"),
        ("anthropic", ANTHROPIC, "messages"),
        ("openai-responses", RESPONSES, "input"),
        ("gemini", GEMINI, "contents"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 100])
async def test_messages_come_back_as_sent(
    client: httpx.AsyncClient, form: str, messages: list[dict], member: str, step: int
) -> None:
    for start in range(0, len(messages), step):
        batch = messages[start : start + step]
        answer = await client.post("/v1/sessions/s/messages", json={"format": form, "messages": batch})
        assert answer.status_code == 201, answer.text
    plain = {"format": form, "policy": {"markers": "none"}}  # cache markers would be added to the messages
    body = (await client.post("/v1/sessions/s/context", json=plain)).json()
    assert body["request"][member] == messages


async def test_a_batch_with_an_invalid_message_is_refused_whole(client: httpx.AsyncClient) -> None:
    said = {"format": "openai", "messages": [{"role": "user", "content": "x"}]}
    cases = [
        ({"format": "xml", "messages": OPENAI}, "invalid-request"),
        ({"format": "openai", "messages": []}, "invalid-request"),
        ({"format": "openai", "messages": ["x"]}, "invalid-message"),
        ({"format": "openai", "messages": [{"role": "robot", "content": "x"}]}, "invalid-message"),
        ({"format": "openai", "messages": [{"role": "tool", "content": "x"}]}, "invalid-message"),
        ({"format": "openai-responses", "messages": [{"role": ["user"], "content": "x"}]}, "invalid-message"),
        ({"format": "openai", "messages": [{"role": "tool", "tool_call_id": "none", "content": "x"}]}, "unknown-call"),
        ({"format": "anthropic", "messages": [{"role": "user", "content": 7}]}, "invalid-message"),
        ({"format": "openai", "messages": [{"role": "user", "content": "x"}], "more": 1}, "invalid-request"),
        ({**said, "events": {"type": "agent.note", "content": "x"}}, "invalid-request"),
        ({**said, "events": [{"type": "agent.note"}]}, "invalid-event"),
        ({**said, "events": [{"type": "agent.note", "content": "x", "native": {"format": "openai"}}]}, "invalid-event"),
        ({**said, "events": [{"type": "agent.note", "content": "x"}] * 1_000}, "invalid-request"),
    ]
    for body, kind in cases:
        answer = await client.post("/v1/sessions/s/messages", json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, f"/problems/{kind}"), (body, answer.text)
    assert (await client.get("/v1/sessions/s")).status_code == 404


async def test_each_event_has_the_index_of_its_message(client: httpx.AsyncClient) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look twice."},
        {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "a", **call}, {"id": "b", **call}]},
        {"role": "tool", "tool_call_id": "b", "content": "second"},
    ]
    body = {"format": "openai", "messages": messages}
    first = await client.post("/v1/sessions/i/messages", json=body, headers={"Idempotency-Key": "k"})
    again = await client.post("/v1/sessions/i/messages", json=body, headers={"Idempotency-Key": "k"})
    for answer in (first, again):
        placed = [(event["index"], event["seq"]) for event in answer.json()["events"]]
        assert placed == [(0, 1), (1, 2), (2, 3), (2, 4), (2, 5), (3, 6)]
    events = [{"type": "agent.note", "content": "x", "id": "n"}, {"type": "agent.note", "content": "y"}]
    await client.post("/v1/sessions/i/events", json={"events": events[:1]})
    known = (await client.post("/v1/sessions/i/events", json={"events": events})).json()
    assert [(event["index"], event["seq"]) for event in known["events"]] == [(0, 7), (1, 8)]


async def test_events_follow_messages(client: httpx.AsyncClient) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    reply = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "a", **call}, {"id": "b", **call}]}
    results = [
        {"type": "tool.result", "call_id": "b", "content": "no such file", "is_error": True, "metadata": {"n": 1}},
        {"type": "tool.result", "call_id": "a", "content": "first"},
    ]
    body = {"format": "openai", "messages": [{"role": "user", "content": "Look twice."}, reply]}
    together = await client.post("/v1/sessions/i/messages", json={**body, "events": results})
    placed = [(event["index"], event["seq"]) for event in together.json()["events"]]
    assert placed == [(0, 1), (1, 2), (1, 3), (1, 4), (2, 5), (3, 6)]
    await client.post("/v1/sessions/j/messages", json=body)
    await client.post("/v1/sessions/j/events", json={"events": results})
    logs = [(await client.get(f"/v1/sessions/{name}/events")).json()["items"] for name in "ij"]
    for event in (*logs[0], *logs[1]):
        del event["id"], event["created_at"]
    assert logs[0] == logs[1]
