"""A call without system prompt or tools is not sent those of another call of its session."""

from typing import Any

import httpx
import pytest

from tests.support.gateways import GatewayReader
from tests.support.provider import Provider, ReceivedRequest

pytestmark = pytest.mark.wing("gateway")

MESSAGES = [{"role": "user", "content": "Read the file."}]
OTHERS = [*MESSAGES, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Go on."}]
PROMPT = "You are a coding agent."
TOOL = {"name": "read_file", "description": "Read a file."}
PATHS = {
    "anthropic": "/gateway/s/s/anthropic/v1/messages",
    "openai": "/gateway/s/s/openai/v1/chat/completions",
    "openai developer": "/gateway/s/s/openai/v1/chat/completions",
    "responses": "/gateway/s/s/openai/v1/responses",
    "responses developer": "/gateway/s/s/openai/v1/responses",
}
TOOLS: dict[str, Any] = {
    "anthropic": {**TOOL, "input_schema": {"type": "object"}},
    "openai": {"type": "function", "function": {**TOOL, "parameters": {"type": "object"}}},
    "responses": {"type": "function", **TOOL, "parameters": {"type": "object"}},
}


def body(form: str, messages: list[Any], *, full: bool) -> dict[str, Any]:
    """Return a call with its own prompt and tools, or without any."""
    kind, _, developer = form.partition(" ")
    made: dict[str, Any] = {"model": "m", "max_tokens": 9}
    lead = [{"role": "developer" if developer else "system", "content": PROMPT}] if full else []
    if kind == "openai":
        made["messages"] = [*lead, *messages]
    elif kind == "responses":
        made["input"] = [*lead, *messages] if developer else messages
        made |= {"instructions": PROMPT} if full and not developer else {}
    else:
        made["messages"] = messages
        made |= {"system": PROMPT} if full else {}
    return made | ({"tools": [TOOLS[kind]]} if full else {})


def has_prompt(asked: ReceivedRequest) -> bool:
    return PROMPT in asked.raw.decode()


@pytest.mark.wing("audit")
@pytest.mark.parametrize("form", sorted(PATHS))
@pytest.mark.parametrize("titled", [MESSAGES, OTHERS], ids=["the same messages", "more messages"])
async def test_a_call_without_prompt_and_tools_is_sent_none(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, form: str, titled: list[Any]
) -> None:
    """The conversation that has prompt and tools keeps them."""
    calls = [(MESSAGES, True), (titled, False), (titled, False), (OTHERS, True), (OTHERS, True)]
    counted = []
    for messages, full in calls:
        answer = await http.post(PATHS[form], json=body(form, messages, full=full))
        assert (answer.status_code, answer.headers["x-palimpsest-mode"]) == (200, "context"), answer.headers
        asked = provider.requests[-1]
        assert has_prompt(asked) == full
        assert "(empty)" not in asked.raw.decode()
        assert ("tools" in asked.body) == full
        record = await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
        counted.append(record["tokens"]["by_source"]["tools"])
    assert not provider.refused
    assert (await http.get("/v1/sessions/s/coverage")).json()["ok"]
    assert [tokens > 10 for tokens in counted] == [full for _, full in calls]


@pytest.mark.parametrize("system", ["", [], None, [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}]])
async def test_an_empty_prompt_is_sent_as_it_is(http: httpx.AsyncClient, provider: Provider, system: Any) -> None:
    for own in ({"system": PROMPT}, {"system": system}):
        made = {"model": "m", "max_tokens": 9, "messages": MESSAGES, **own}
        answer = await http.post(PATHS["anthropic"], json=made)
        assert answer.status_code in (200, 400)  # the fake provider refuses an empty prompt, as the real one does
    assert provider.requests[-1].body.get("system") == system


async def test_a_prompt_of_the_log_is_not_added_to_a_call(http: httpx.AsyncClient, provider: Provider) -> None:
    events = [{"type": "system.prompt", "content": PROMPT}, {"type": "tools", "content": [TOOLS["anthropic"]]}]
    assert (await http.post("/v1/sessions/s/events", json={"events": events})).status_code == 201
    answer = await http.post(PATHS["anthropic"], json=body("anthropic", MESSAGES, full=False))
    assert answer.headers["x-palimpsest-mode"] == "context"
    assert not has_prompt(provider.requests[-1])


async def test_count_tokens_uses_the_calls_own_prompt(http: httpx.AsyncClient, provider: Provider) -> None:
    await http.post(PATHS["anthropic"], json=body("anthropic", MESSAGES, full=True))
    for full in (False, True):
        answer = await http.post(f"{PATHS['anthropic']}/count_tokens", json=body("anthropic", OTHERS, full=full))
        assert answer.headers["x-palimpsest-mode"] == "context"
        assert has_prompt(provider.requests[-1]) == full
    assert not provider.refused


async def test_a_continued_response_does_not_inherit_instructions(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    first = (await http.post(PATHS["responses"], json=body("responses", MESSAGES, full=True))).json()
    await behind.logged(http, 4)
    more = {"model": "m", "previous_response_id": first["id"], "input": "Go on."}
    answer = await http.post(PATHS["responses"], json=more)
    assert answer.headers["x-palimpsest-mode"] == "context"
    assert not has_prompt(provider.requests[-1])


@pytest.mark.parametrize("empty", ["", []])
async def test_a_context_without_a_system_prompt_can_be_requested(http: httpx.AsyncClient, empty: Any) -> None:
    path, asked = "/v1/sessions/s/context", {"format": "anthropic", "messages": MESSAGES}
    made = (await http.post(path, json=asked | {"system": PROMPT, "tools": [TOOLS["anthropic"]]})).json()
    assert made["request"]["system"] and made["request"]["tools"]
    stays = (await http.post(path, json=asked)).json()
    assert stays["request"]["system"] and stays["request"]["tools"]
    none = (await http.post(path, json=asked | {"system": empty, "tools": []})).json()
    assert not none["request"].keys() & {"system", "tools"}
