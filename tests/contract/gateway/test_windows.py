"""The window of a server with OpenAI's API, which its operator states."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conftest import serving
from tests.support.gateways import NO_WAIT_POLICY, SESSION, gpt, settings
from tests.support.provider import Provider

pytestmark = pytest.mark.wing("gateway")

STATED = 8_192
MESSAGES: Any = [
    {"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} " + "word " * 500}
    for number in range(61)
]


@pytest.fixture
async def local(database_url: str, provider: Provider) -> AsyncIterator[str]:
    """The base URL of a server whose upstream runs its models with a small window."""
    async with serving(settings(provider, gateway_openai_window_tokens=STATED), database_url) as url:
        yield url


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
