"""Compactions that clients request within an ordinary call, over an upstream that refuses the parameter."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.conftest import serving
from tests.support.gateways import NO_WAIT_POLICY, SESSION, claude, events_of, gpt, settings
from tests.support.provider import Provider, ProviderReply

pytestmark = pytest.mark.wing("gateway")

THRESHOLD = 6_000
CALLS = 24
BETA = "compact-2026-01-12"
Json = dict[str, Any]


def _entries(tokens: int | None = THRESHOLD) -> Any:
    return [{"type": "compaction", **({} if tokens is None else {"compact_threshold": tokens})}]


def _edit(tokens: int = THRESHOLD, **more: Any) -> Any:
    return {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": tokens}, **more}


def _text(number: int) -> str:
    return f"Message {number}. " + " ".join(f"word{number * 1_000 + one}" for one in range(150))


@asynccontextmanager
async def _no_waits(gateway: str) -> AsyncIterator[httpx.AsyncClient]:
    """A session whose contexts wait for no summary, since no worker runs."""
    async with httpx.AsyncClient(base_url=gateway, timeout=30) as http:
        (await http.put("/v1/sessions/s", json={"policy": NO_WAIT_POLICY})).raise_for_status()
        yield http


async def _say(
    client: openai.AsyncOpenAI | anthropic.AsyncAnthropic, given: Any, field: Any = None, **more: Any
) -> httpx.Headers:
    """Send one call, with the request for a compaction in the parameter; return the response's headers."""
    if isinstance(client, openai.AsyncOpenAI):
        said = await client.responses.with_raw_response.create(
            model="gpt-5-mini", input=given, context_management=_entries() if field is None else field, **more
        )
        return said.headers
    said_too = await client.beta.messages.with_raw_response.create(
        model="claude-sonnet-5",
        max_tokens=100,
        messages=given,
        context_management={"edits": [_edit()]} if field is None else field,
        betas=[BETA],
        **more,
    )
    return said_too.headers


@pytest.mark.parametrize("connect", [gpt, claude])
async def test_contexts_stay_below_the_threshold(gateway: str, provider: Provider, connect: Any) -> None:
    provider.choose = lambda _: ProviderReply(_text(len(provider.requests) + 500))
    given: list[Json] = []
    wanted = 0
    async with _no_waits(gateway) as http, connect(gateway) as client:
        for number in range(CALLS):
            given.append({"role": "user", "content": _text(number)})
            headers = await _say(client, given)
            assert headers["x-palimpsest-mode"] == "context", headers
            assert int(headers["x-palimpsest-tokens-sent"]) <= THRESHOLD
            wanted = int(headers["x-palimpsest-tokens-wanted"])
            given.append({"role": "assistant", "content": _text(len(provider.requests) + 500)})
        record = (await http.get(f"/v1/sessions/s/calls/{headers['x-palimpsest-call']}")).json()
        assert (record["tokens"]["limit"], record["tokens"]["limit_assumed"]) == (THRESHOLD, False)
        assert len({one["line"] for one in await events_of(http) if "line" in one}) <= 1
    assert wanted > 2 * THRESHOLD
    assert not provider.refused
    assert len(provider.calls()) == CALLS
    assert all("context_management" not in one.body for one in provider.calls())


async def test_only_its_own_part_of_the_field_and_of_the_betas_is_removed(gateway: str, provider: Provider) -> None:
    clearing = {"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 2}}
    given: Any = [{"role": "user", "content": "Hello?"}]
    async with claude(gateway) as client:
        await client.beta.messages.create(
            model="claude-sonnet-5",
            max_tokens=100,
            messages=given,
            context_management={"edits": [_edit(), clearing]},  # type: ignore[list-item]
            betas=[BETA, "context-management-2025-06-27"],
        )
        await client.beta.messages.count_tokens(
            model="claude-sonnet-5", messages=given, context_management={"edits": [_edit()]}, betas=[BETA]
        )
    sent, counted = provider.requests
    assert sent.body["context_management"] == {"edits": [clearing]}
    assert sent.header("anthropic-beta") == "context-management-2025-06-27"
    assert "context_management" not in counted.body
    assert "compact" not in (counted.header("anthropic-beta") or "")


async def test_the_window_returns_with_calls_that_request_none(gateway: str) -> None:
    given: Any = [{"role": "user", "content": "Hello?"}]

    async def limit(client: openai.AsyncOpenAI, http: httpx.AsyncClient, field: Any) -> int:
        headers = await _say(client, given, field)
        found: int = (await http.get(f"/v1/sessions/s/calls/{headers['x-palimpsest-call']}")).json()["tokens"]["limit"]
        return found

    async with _no_waits(gateway) as http, gpt(gateway) as client:
        own = await limit(client, http, openai.omit)
        assert own > THRESHOLD
        assert await limit(client, http, _entries()) == THRESHOLD
        assert await limit(client, http, _entries(10**7)) == own
        assert await limit(client, http, _entries()) == THRESHOLD
        assert await limit(client, http, openai.omit) == own


async def test_a_threshold_that_no_context_fits_is_disregarded(gateway: str, provider: Provider) -> None:
    async with _no_waits(gateway) as http, gpt(gateway) as client:
        headers = await _say(client, [{"role": "user", "content": "word " * 3_000}], _entries(1_000))
        assert (await http.get("/v1/sessions/s/calls")).json()["items"]
    assert headers["x-palimpsest-mode"] == "context"
    assert not provider.refused


@pytest.mark.parametrize(
    "field",
    [
        [{"type": "compaction", "compact_threshold": "many"}],
        [{"type": "compaction", "compact_threshold": 0}],
        [{"type": "truncation"}],
        {"type": "compaction"},
    ],
)
async def test_a_parameter_that_is_no_valid_request_is_the_upstreams(
    gateway: str, provider: Provider, field: Any
) -> None:
    provider.compacts = True
    async with gpt(gateway) as client:
        headers = await _say(client, [{"role": "user", "content": "Hello?"}], field)
    assert headers["x-palimpsest-mode"] == "context"
    assert provider.calls()[-1].body["context_management"] == field


async def test_a_bypass_goes_without_it(database_url: str, provider: Provider) -> None:
    policy = {"window_tokens": 300, "reserve_tokens": 0, "summarize": {"enabled": False}}
    given: Any = [{"role": "user", "content": "word " * 2_000}]
    async with serving(settings(provider), database_url) as url, httpx.AsyncClient(base_url=url) as http:
        (await http.put("/v1/sessions/s", json={"policy": policy})).raise_for_status()
        async with gpt(url) as client, claude(url) as other:
            for one in (client, other):
                headers = await _say(one, given)
                assert headers["x-palimpsest-mode"] == "bypass"
    assert not provider.refused
    assert [one.body.get("input", one.body.get("messages")) for one in provider.calls()] == [given, given]


async def test_calls_that_are_not_budgeted_keep_it(gateway: str, provider: Provider) -> None:
    """They have no session, or a history that only the provider has."""
    provider.compacts = True
    given: Any = [{"role": "user", "content": "Hello?"}]
    async with gpt(gateway, {}) as client, claude(gateway, {}) as other:
        for one in (client, other):
            assert (await _say(one, given))["x-palimpsest-reason"] == "no-session"
    async with gpt(gateway) as client:
        headers = await _say(client, given, conversation="conv_1")
    assert headers["x-palimpsest-reason"] == "conversation-at-provider"
    assert all("compact" in str(one.body["context_management"]) for one in provider.calls())
    assert provider.calls()[1].header("anthropic-beta") == BETA


@pytest.mark.parametrize(
    "given", [{"gateway_mode": "observe"}, {"gateway_compaction": "upstream"}, {"gateway_holdout": 0.999999999}]
)
async def test_it_is_left_to_the_upstream(database_url: str, provider: Provider, given: Json) -> None:
    provider.compacts = True
    async with serving(settings(provider, **given), database_url) as url, gpt(url) as client, claude(url) as other:
        for one in (client, other):
            await _say(one, [{"role": "user", "content": "Hello?"}])
    first, second = provider.calls()
    assert first.body["context_management"] == _entries()
    assert second.body["context_management"] == {"edits": [_edit()]}
    assert second.header("anthropic-beta") == BETA


async def test_it_stays_the_providers_if_the_list_holds_a_compaction_of_the_provider(
    gateway: str, provider: Provider
) -> None:
    provider.compacts = True
    question = {"role": "user", "content": "And now?"}
    block = {"type": "compaction", "content": "They said hello."}
    async with gpt(gateway) as client:
        await _say(client, [{"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAAA"}, question])
    async with claude(gateway, {**SESSION, "x-palimpsest-session": "t"}) as client:
        await _say(client, [{"role": "assistant", "content": [block]}, question])
    assert all("compact" in str(one.body["context_management"]) for one in provider.calls())
    assert provider.calls()[1].header("anthropic-beta") == BETA
