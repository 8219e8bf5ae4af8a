"""Content that only one provider understands: its text is carried over to other formats, and losses are reported."""

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
GO = {"role": "user", "content": "go"}
ANTHROPIC = [
    GO,
    {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "print(6*7)"}},
            {
                "type": "code_execution_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": {
                    "type": "code_execution_result",
                    "stdout": "forty-two",
                    "stderr": "a warning",
                    "return_code": 0,
                    "content": [{"type": "code_execution_output", "file_id": "file_9"}],
                },
            },
            {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {"query": "palimpsest"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_2",
                "content": [
                    {"type": "web_search_result", "title": "Scraped pages", "url": "https://example.org/p",
                     "encrypted_content": "Zm9v", "page_age": None}
                ],
            },
            {"type": "text", "text": "Done."},
        ],
    },
    {"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]},
]  # fmt: skip
RESPONSES = [
    GO,
    {"type": "mcp_call", "id": "mcp_1", "server_label": "wiki", "name": "lookup", "arguments": '{"q": "vellum"}',
     "output": "calf skin", "error": None},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "ink"}},
    {"role": "user", "content": [{"type": "input_file", "file_id": "file_2"}]},
]  # fmt: skip
CHAT = [
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]},
    {"role": "assistant", "content": None, "audio": {"id": "audio_1", "transcript": "I said hello."}},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]},
]
CASES = [
    ("anthropic", ANTHROPIC, ["forty-two", "a warning", "print(6*7)", "Scraped pages", "https://example.org/p"],
     {"no_file_id", "no_encrypted_content"}),
    ("openai-responses", RESPONSES, ["lookup", "vellum", "calf skin", "ink"], {"no_file_id"}),
    ("openai", CHAT, ["I said hello."], {"no_audio"}),
]  # fmt: skip


async def context(http: httpx.AsyncClient, form: str) -> Json:
    answer = await http.get("/v1/sessions/s/context", params={"format": form})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


@pytest.mark.wing("audit")
@pytest.mark.parametrize(("form", "said", "texts", "reasons"), CASES, ids=[case[0] for case in CASES])
async def test_texts_are_carried_over_and_losses_reported(
    client: httpx.AsyncClient, form: str, said: list[Json], texts: list[str], reasons: set[str]
) -> None:
    answer = await client.post("/v1/sessions/s/messages", json={"format": form, "messages": said})
    assert answer.status_code == 201, answer.text
    epochs = set()
    for other, check in CHECKS.items():
        found = await context(client, other)
        check(found["request"])
        epochs.add(found["epoch"])
        lost = [row for row in found["evictions"] if row["reducer"] == "format"]
        manifest = (await client.get(f"/v1/sessions/s/calls/{found['call_id']}")).json()
        again = (await client.get(f"/v1/sessions/s/calls/{found['call_id']}/context")).json()
        assert again["sha256"] == found["sha256"]
        assert manifest["evictions"] == found["evictions"] == again["evictions"]
        if other == form:
            assert lost == []
            continue
        request_text = json.dumps(found["request"], ensure_ascii=False).replace("\\", "")
        assert [text for text in texts if text not in request_text] == []
        assert {row["disposition"] for row in lost} == {"replaced"}
        assert {row["reason"] for row in lost} == {f"{why}_in_{other.replace('-', '_')}" for why in reasons}
    assert epochs == {1}  # a loss in rendering opens no epoch
    coverage = (await client.get("/v1/sessions/s/coverage")).json()
    assert coverage["ok"]
    assert {run["disposition"] for run in coverage["runs"]} == {"verbatim"}


async def test_adjacent_events_with_the_same_loss_are_one_row(client: httpx.AsyncClient) -> None:
    said = [CHAT[0], {"role": "assistant", "content": "yes"}] * 20
    await client.post("/v1/sessions/s/messages", json={"format": "openai", "messages": said})
    rows = (await context(client, "anthropic"))["evictions"]
    assert [(row["from_seq"], row["to_seq"], row["reason"]) for row in rows] == [(1, 39, "no_audio_in_anthropic")]


async def test_a_system_message_of_anthropic_round_trips(client: httpx.AsyncClient) -> None:
    said = [
        GO,
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "on"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "and"},
    ]
    await client.post("/v1/sessions/s/messages", json={"format": "anthropic", "messages": said})
    await client.post("/v1/sessions/s/events", json={"events": [{"type": "system.message", "content": "Be kind."}]})
    request = (await context(client, "anthropic"))["request"]
    validators.check_anthropic(request)
    assert request["messages"][:5] == said[:5]
    assert "<system-message>\nBe kind.\n</system-message>" in str(request["messages"][5]["content"][-1]["text"])
    for other in ("openai", "openai-responses"):
        request = (await context(client, other))["request"]
        CHECKS[other](request)
        assert request[MEMBER[other]][3] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(("named", "step"), [("call_1", 1), ("call_1", 9), ("lsh_1", 9)])
async def test_a_local_shells_output_answers_the_call_it_names(
    client: httpx.AsyncClient, named: str, step: int
) -> None:
    """The item that made a call is known within one request and from the log."""
    action = {"type": "exec", "command": ["ls"], "env": {}}
    said = [
        GO,
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": action, "status": "completed"},
        {"type": "local_shell_call_output", "id": named, "output": "a.txt"},
    ]
    for start in range(0, 3, step):
        batch = said[start : start + step]
        answer = await client.post("/v1/sessions/s/messages", json={"format": "openai-responses", "messages": batch})
        assert answer.status_code == 201, answer.text
    assert (await context(client, "openai-responses"))["request"]["input"] == said
    log = (await client.get("/v1/sessions/s/events")).json()["items"]
    assert [(event["type"], event.get("call_id")) for event in log[1:]] == [
        ("tool.call", "call_1"),
        ("tool.result", "call_1"),
    ]
    for other in ("openai", "anthropic"):
        request = (await context(client, other))["request"]
        CHECKS[other](request)
        assert "a.txt" in json.dumps(request)


async def test_fields_only_an_sdk_adds_are_logged_and_never_sent(client: httpx.AsyncClient) -> None:
    call = {"id": "a", "type": "function", "index": 0}
    function = {"name": "read", "arguments": "{}", "parsed_arguments": {"a": 1}}
    said = [
        GO,
        {"role": "assistant", "content": None, "parsed": None, "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    await client.post("/v1/sessions/s/messages", json={"format": "openai", "messages": said})
    text = json.dumps((await context(client, "openai"))["request"])
    assert [name for name in ("parsed", "parsed_arguments", "index") if f'"{name}"' in text] == []
