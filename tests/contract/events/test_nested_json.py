"""JSON inside a text costs no more than the text, and one with too many values is kept as plain text."""

import json
import time
from typing import Any

import httpx
import pytest

from app.core.log.events import INVALID_ARGUMENTS, VALUES_MAX
from tests.support import validators

CHECKS = {
    "openai": validators.check_openai,
    "openai-responses": validators.check_openai_responses,
    "anthropic": validators.check_anthropic,
}
FORMATS = ("openai", "openai-responses", "anthropic", "gemini")
MANY = '{"a":[' + "[]," * VALUES_MAX + "[]]}"
WIDE = {"max_tokens": 1_000_000}


def events(arguments: str, result: str = "done") -> dict[str, Any]:
    call = {"call_id": "c", "tool": "write"}
    return {
        "events": [
            {"type": "user.message", "content": "go"},
            {"type": "tool.call", **call, "arguments": arguments},
            {"type": "tool.result", "call_id": "c", "content": result},
        ]
    }


def messages(form: str, arguments: str) -> list[Any]:
    """Return a conversation with one call that has these arguments, in a provider's format."""
    function = {"name": "write", "arguments": arguments}
    if form == "openai":
        call = {"id": "c", "type": "function", "function": function}
        return [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ]
    if form == "openai-responses":
        return [
            {"role": "user", "content": "go"},
            {"type": "function_call", "call_id": "c", **function},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
        ]
    use = {"type": "tool_use", "id": "c", "name": "write", "input": arguments}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}]},
    ]


async def cpu_seconds(http: httpx.AsyncClient, path: str, body: Any) -> float:
    """Return the CPU seconds that a request takes in this process, which also runs the server."""
    content = json.dumps(body).encode()
    before = time.process_time()
    answer = await http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 201), answer.text[:300]
    return time.process_time() - before


@pytest.mark.parametrize("way", ["events", "openai", "openai-responses", "anthropic", "context"])
async def test_json_in_a_text_costs_as_much_as_the_text(client: httpx.AsyncClient, way: str) -> None:
    plain = "a plain word " * (len(MANY) // 13)

    def request(sid: str, text: str) -> tuple[str, Any]:
        if way == "events":
            return f"/v1/sessions/{sid}/events", events(text)
        if way == "context":
            prompt = {"role": "user", "content": "next"}
            conversation = [*messages("openai", text), prompt, {"role": "assistant", "content": "yes"}, prompt]
            return f"/v1/sessions/{sid}/context", {"format": "openai", "messages": conversation, **WIDE}
        return f"/v1/sessions/{sid}/messages", {"format": way, "messages": messages(way, text)}

    await cpu_seconds(client, *request("warm", "{}"))
    expected = min([await cpu_seconds(client, *request(f"plain-{n}", plain)) for n in range(3)])
    assert min([await cpu_seconds(client, *request(f"hostile-{n}", MANY)) for n in range(3)]) < 3 * expected


@pytest.mark.wing("audit")
@pytest.mark.parametrize("form", ["openai", "openai-responses", "anthropic", None])
async def test_arguments_with_too_many_values_round_trip_and_are_valid_in_other_formats(
    client: httpx.AsyncClient, form: str | None
) -> None:
    if form is None:
        answer = await client.post("/v1/sessions/s/events", json=events(MANY))
    else:
        answer = await client.post("/v1/sessions/s/messages", json={"format": form, "messages": messages(form, MANY)})
    assert answer.status_code == 201, answer.text[:300]
    assert (await client.get("/v1/sessions/s/events/2")).json()["arguments"] == MANY
    for other in FORMATS:
        made = await client.get("/v1/sessions/s/context", params={"format": other, **WIDE})
        assert made.status_code == 200, made.text[:300]
        body = made.json()
        assert (other == form != "anthropic") == (INVALID_ARGUMENTS not in json.dumps(body["request"]))
        if other in CHECKS and other != form:
            CHECKS[other](body["request"])
        again = await client.get(f"/v1/sessions/s/calls/{body['call_id']}/context")
        assert again.json()["sha256"] == body["sha256"]


async def test_tools_as_a_text_with_too_many_values_are_refused(client: httpx.AsyncClient) -> None:
    text = '[{"name":"a","x":[' + "0," * VALUES_MAX + "0]}]"
    answer = await client.post("/v1/sessions/s/events", json={"events": [{"type": "tools", "content": text}]})
    assert (answer.status_code, answer.json()["field"]) == (422, "content"), answer.text[:300]
    assert answer.json()["detail"] == f"content: holds more than {VALUES_MAX} values"
    assert (await client.get("/v1/sessions/s")).status_code == 404


MANY_TEXTS = 8
DENSE = '{"a":[' + "[]," * 99_000 + "[]]}"
"""Slightly fewer values than the limit for parsing."""


def rounds(text: str) -> list[Any]:
    """Return a conversation with MANY_TEXTS calls that have these arguments."""
    function = {"name": "write", "arguments": text}
    called: list[Any] = [{"role": "user", "content": "go"}]
    for number in range(MANY_TEXTS):
        call = {"id": f"c{number}", "type": "function", "function": function}
        called.append({"role": "assistant", "content": None, "tool_calls": [call]})
        called.append({"role": "tool", "tool_call_id": f"c{number}", "content": "done"})
    return [*called, {"role": "user", "content": "next"}]


@pytest.mark.parametrize("way", ["append", "context", "unread"])
async def test_json_in_many_texts_is_parsed_off_the_event_loop(client: httpx.AsyncClient, way: str) -> None:
    """Every text is parsed; `unread` calls precede the events a context loads, but the files they name are listed."""

    async def on_loop(sid: str, text: str) -> float:
        """Return the CPU seconds of this thread, which runs the server's loop."""
        path, body = f"/v1/sessions/{sid}", {"format": "openai", "messages": rounds(text)}
        if way == "unread":
            assert (await client.post(f"{path}/messages", json=body)).status_code == 201
            body = {"max_tokens": 1_000}
        content = json.dumps(body | (WIDE if way == "context" else {})).encode()
        before = time.thread_time()
        answer = await client.post(
            f"{path}/{'messages' if way == 'append' else 'context'}",
            content=content,
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code in (200, 201), answer.text[:300]
        return time.thread_time() - before

    await on_loop("warm", "{}")
    plain = await on_loop("plain", "a plain word " * (len(DENSE) // 13))
    assert await on_loop("hostile", DENSE) < 2 * plain + 0.05
