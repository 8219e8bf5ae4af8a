"""The window of a server with OpenAI's API, which its operator states."""

from typing import Any

import httpx
import openai
import pytest

from app.runtime.settings import Settings
from tests.support.gateways import NO_WAIT_POLICY, SESSION, gpt, settings
from tests.support.provider import Provider, ProviderReply, ReceivedRequest
from tests.support.sharing import Shared

pytestmark = [pytest.mark.wing("gateway"), pytest.mark.wing("audit")]

STATED = 8_192
MESSAGES: Any = [
    {"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} " + "word " * 500}
    for number in range(61)
]


@pytest.fixture
async def local(shared: Shared, provider: Provider) -> str:
    """The base URL of a server whose upstream runs its models with a small window."""
    return await shared.url(settings(provider, gateway_openai_window_tokens=STATED))


async def _limit(url: str, call: str) -> tuple[int, bool]:
    async with httpx.AsyncClient(base_url=url) as http:
        tokens = (await http.get(f"/v1/sessions/s/calls/{call}")).json()["tokens"]
    return tokens["limit"], tokens["limit_assumed"]


async def _ask(url: str, model: str, messages: Any) -> str:
    """Ask a model, and return the id of the call's record."""
    async with gpt(url) as client:
        answer = await client.chat.completions.with_raw_response.create(model=model, messages=messages)
    assert answer.headers["x-palimpsest-mode"] == "context", answer.headers
    return answer.headers["x-palimpsest-call"]


@pytest.mark.parametrize("model", ["qwen3-coder", "gpt-5-mini"])
async def test_contexts_fit_the_stated_window(local: str, provider: Provider, model: str) -> None:
    call = await _ask(local, model, MESSAGES)
    sent = provider.calls()[0].body["messages"]
    assert sent[-1] == MESSAGES[-1]
    assert len(str(sent)) < len(str(MESSAGES)) / 3
    assert await _limit(local, call) == (STATED, False)


async def test_a_policys_window_precedes_it(local: str) -> None:
    async with httpx.AsyncClient(base_url=local) as http:
        policy = {**NO_WAIT_POLICY, "window_tokens": 6_000}
        (await http.put(f"/v1/sessions/{SESSION['x-palimpsest-session']}", json={"policy": policy})).raise_for_status()
    assert await _limit(local, await _ask(local, "qwen3-coder", MESSAGES)) == (6_000, False)


async def test_it_applies_to_sessions_that_exist(gateway: str, local: str) -> None:
    assert await _limit(gateway, await _ask(gateway, "qwen3-coder", MESSAGES[:1])) == (128_000, True)
    for count in (3, 5):
        assert await _limit(local, await _ask(local, "qwen3-coder", MESSAGES[:count])) == (STATED, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_thirty_rounds_of_a_tool_with_a_local_server_that_reports_no_usage(
    shared: Shared, provider: Provider, stream: bool
) -> None:
    """It has its own address and window, so OpenAI's API can be another upstream."""
    rounds, provider.counts = 30, False

    def choose(_: ReceivedRequest) -> ProviderReply:
        number = len(provider.calls())
        call = (f"call_{number}", "read_file", {"path": f"{number}.py"})
        return ProviderReply("", [call]) if number < rounds else ProviderReply("Done.")

    provider.choose = choose
    own = Settings(
        gateway_openai_url="http://127.0.0.1:9/v1",
        gateway_local_url=f"{provider.url}/v1",
        gateway_local_window_tokens=STATED,
    )
    messages: list[Any] = [{"role": "user", "content": "Read the files one by one."}]
    tools: Any = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
    limits = set()
    url = await shared.url(own)
    async with openai.AsyncOpenAI(
        base_url=f"{url}/gateway/local/v1", api_key="none", max_retries=0, default_headers=SESSION
    ) as client:
        (await _set_policy(url)).raise_for_status()
        while True:
            asked: Any = {"model": "qwen3-coder", "messages": messages, "tools": tools}
            if stream:
                async with client.chat.completions.stream(**asked) as events:
                    reply = (await events.get_final_completion()).choices[0].message
            else:
                reply = (await client.chat.completions.create(**asked)).choices[0].message
            messages.append(reply.to_dict(exclude_none=True))
            if not reply.tool_calls:
                break
            text = "".join(f"{reply.tool_calls[0].function.arguments} line {n}\n" for n in range(160))
            messages.append({"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": text})
        async with httpx.AsyncClient(base_url=url) as http:
            calls = (await http.get("/v1/sessions/s/calls?limit=100")).json()["items"]
            lines = (await http.get("/v1/sessions/s/lines")).json()["items"]
        limits = {(await _limit(url, one["call_id"]))[0] for one in calls[:3]}
    assert (provider.refused, len(provider.calls()), len(calls), len(lines)) == ([], rounds, rounds, 1)
    assert limits == {STATED}
    assert max(len(one.raw) for one in provider.calls()) < len(str(messages)) / 4


async def _set_policy(url: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url) as http:
        return await http.put("/v1/sessions/s", json={"policy": NO_WAIT_POLICY})
