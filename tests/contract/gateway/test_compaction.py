"""Compactions that the gateway answers, over an upstream that knows nothing of them, with OpenAI's own client."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from app.store.engine import Database
from tests.conftest import serving
from tests.support.gateways import SESSION, GatewayReader, events_of, gpt, settings
from tests.support.provider import Provider, ProviderReply
from tests.support.tenants import tenant

pytestmark = pytest.mark.wing("gateway")

MODEL = "gpt-5-mini"
FIRST: Any = [
    {"role": "user", "content": "The code word is heliotrope."},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "Read a.py."},
]
NEXT: Any = {"role": "user", "content": "And now?"}
Json = dict[str, Any]


async def _compact(client: openai.AsyncOpenAI, given: Any = FIRST, **more: Any) -> Json:
    """Return the item of a compaction."""
    compacted = await client.responses.compact(model=MODEL, input=given, **more)
    [item] = compacted.output
    assert (compacted.object, item.type, compacted.usage.total_tokens) == ("response.compaction", "compaction", 0)
    found: Json = item.model_dump(exclude_none=True)
    return found


async def _create(client: openai.AsyncOpenAI, given: Any, **more: Any) -> httpx.Headers:
    """Send a call; return the response's headers."""
    raw = await client.responses.with_raw_response.create(model=MODEL, input=given, **more)
    return raw.headers


def _sent(provider: Provider) -> list[Any]:
    """Return the contents of the last request's messages."""
    assert not provider.refused
    return [one.get("content", one.get("output")) for one in provider.calls()[-1].body["input"]]


def _altered(item: Json) -> Json:
    text = item["encrypted_content"]
    other = "A" if text[40] != "A" else "B"
    return {**item, "encrypted_content": f"{text[:40]}{other}{text[41:]}"}


async def test_an_item_is_continued_from_the_log(gateway: str, http: httpx.AsyncClient, provider: Provider) -> None:
    async with gpt(gateway) as client:
        item = await _compact(client)
    assert provider.requests == [], "the upstream knows no compaction"
    async with gpt(gateway, {}) as client:  # the item has the session
        said = await _create(client, [*FIRST[:1], item, NEXT])
    named = {name: said[f"x-palimpsest-{name}"] for name in ("mode", "session", "line")}
    assert named == {"mode": "context", "session": "s", "line": "s@line.1"}
    assert _sent(provider) == ["The code word is heliotrope.", "Noted.", "Read a.py.", "And now?"]
    newest = (await http.get("/v1/gateway")).json()["calls"]
    assert [one["mode"] for one in newest] == ["context", "answered"]


async def test_a_conversation_is_compacted_twice_and_read_by_another_process(
    gateway: str, database_url: str, provider: Provider, http: httpx.AsyncClient, behind: GatewayReader
) -> None:
    async with gpt(gateway) as client:
        first = await _compact(client)
        await _create(client, [first, NEXT])
        await behind.logged(http, 5)
        reply: Any = {"role": "assistant", "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]}
        second = await _compact(client, [first, NEXT, reply])
    async with serving(settings(provider), database_url) as other, gpt(other, {}) as client:
        said = await _create(client, [{"role": "user", "content": "dropped by the client"}, second, NEXT])
    assert said["x-palimpsest-line"] == "s@line.1"
    assert _sent(provider)[-2][0]["text"] == "Hello."
    assert _sent(provider)[-1] == "And now?"
    assert len(_sent(provider)) == 6
    await behind.logged(http, 7)


async def test_a_stored_response_is_compacted_by_its_id(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    async with gpt(gateway) as client:
        answer = await client.responses.create(model=MODEL, input=FIRST, instructions="Be terse.")
        compacted = await client.responses.compact(model=MODEL, previous_response_id=answer.id)
        given: Any = [compacted.output[0].model_dump(exclude_none=True), NEXT]
        await _create(client, given, instructions="Be terse.")
    assert len(_sent(provider)) == 5
    assert provider.calls()[-1].body["instructions"] == "Be terse."
    types = [one["type"] for one in await events_of(http)]
    assert types.count("system.prompt") == 1


async def test_an_unknown_response_is_the_providers_to_compact(gateway: str, provider: Provider) -> None:
    async with gpt(gateway) as client:
        raw = await client.responses.with_raw_response.compact(model=MODEL, previous_response_id="resp_elsewhere")
    assert raw.headers["x-palimpsest-reason"] == "conversation-at-provider"
    assert [one.path for one in provider.requests] == ["/v1/responses/compact"]


async def test_a_result_after_the_item_answers_a_call_before_it(gateway: str, provider: Provider) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
    async with gpt(gateway) as client:
        item = await _compact(client, [*FIRST, call])
        await _create(client, [item, {"type": "function_call_output", "call_id": "c1", "output": "text"}])
    assert [one.get("type") for one in provider.calls()[-1].body["input"][-2:]] == [
        "function_call",
        "function_call_output",
    ]
    assert not provider.refused


async def test_a_system_message_after_the_item_stays_where_it_is(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    developer: Any = {"role": "developer", "content": "The user is in /tmp."}
    async with gpt(gateway) as client:
        item = await _compact(client)
        await _create(client, [item, developer, NEXT])
    assert _sent(provider)[-2:] == ["The user is in /tmp.", "And now?"]
    assert [one["type"] for one in await events_of(http)][3:5] == ["system.message", "user.message"]


async def test_two_continuations_of_one_item_are_two_lines(gateway: str, provider: Provider) -> None:
    async with gpt(gateway) as client:
        item = await _compact(client)
        first = await _create(client, [item, NEXT])
        other = await _create(client, [item, {"role": "user", "content": "Or else?"}])
    assert (first["x-palimpsest-line"], other["x-palimpsest-line"]) == ("s@line.1", "s@line.2")
    assert _sent(provider) == ["The code word is heliotrope.", "Noted.", "Read a.py.", "Or else?"]


async def test_an_item_is_continued_after_its_session_was_rewound_to_nothing(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    async with gpt(gateway) as client:
        item = await _compact(client)
        assert (await http.post("/v1/sessions/s/rewind", json={"to": 0})).is_success
        await _create(client, [item, NEXT])
    assert len(_sent(provider)) == 4


async def test_redacted_content_does_not_return_with_an_item(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    async with gpt(gateway) as client:
        item = await _compact(client)
        assert (await http.delete("/v1/sessions/s/events/1")).is_success
        await _create(client, [item, NEXT])
    assert "heliotrope" not in json.dumps(provider.calls()[-1].body)
    assert _sent(provider)[-1] == "And now?"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_trigger_is_answered_by_an_item(gateway: str, provider: Provider, stream: bool) -> None:
    given: Any = [*FIRST, {"type": "compaction_trigger"}]
    async with gpt(gateway) as client:
        if stream:
            async with client.responses.stream(model=MODEL, input=given) as events:
                seen = [event.type async for event in events]
                answer = await events.get_final_response()
            assert seen[0] == "response.created"
            assert seen.count("response.output_item.done") == 1
        else:
            answer = await client.responses.create(model=MODEL, input=given)
        [item] = answer.output
        assert (answer.status, answer.model, item.type) == ("completed", MODEL, "compaction")
        assert provider.requests == []
        await _create(client, [item.model_dump(exclude_none=True), NEXT])
    assert len(_sent(provider)) == 4


async def test_altered_items_are_refused(gateway: str, provider: Provider) -> None:
    async with gpt(gateway) as client:
        item = await _compact(client)
        short = {**item, "encrypted_content": item["encrypted_content"][:30]}
        for wrong in (_altered(item), short, {**item, "encrypted_content": "palimpsest.1.none of ours"}):
            with pytest.raises(openai.UnprocessableEntityError, match="altered"):
                await _create(client, [wrong, NEXT])
            with pytest.raises(openai.UnprocessableEntityError, match="altered") as caught:
                await _compact(client, [wrong, NEXT])
            assert "invalid-request" in str(caught.value.body)
    assert provider.requests == []


async def test_an_item_of_another_tenant_is_refused(gateway: str, database: Database, provider: Provider) -> None:
    items = []
    for name in ("ours", "theirs"):
        secret, _ = await tenant(database, name)
        async with gpt(gateway, {**SESSION, "x-palimpsest-key": secret}) as client:
            items.append(await _compact(client))
            if len(items) == 2:
                with pytest.raises(openai.UnprocessableEntityError, match="another tenant"):
                    await _create(client, [items[0], NEXT])
                await _create(client, [items[1], NEXT])
    assert len(provider.calls()) == 1


async def test_a_key_with_a_prefix_opens_no_item_of_other_sessions(gateway: str, database: Database) -> None:
    secret, _ = await tenant(database, "ours")
    async with gpt(gateway, {**SESSION, "x-palimpsest-key": secret}) as client:
        item = await _compact(client)
    async with httpx.AsyncClient(base_url=gateway, headers={"authorization": f"Bearer {secret}"}) as admin:
        made = await admin.post("/v1/keys", json={"name": "k", "scopes": ["ingest", "read"], "session_prefix": "u:"})
        assert made.is_success, made.text
    async with gpt(gateway, {"x-palimpsest-key": made.json()["secret"]}) as client:
        with pytest.raises(openai.NotFoundError):
            await _create(client, [item, NEXT])


async def test_an_item_of_an_erased_session_is_gone(gateway: str, http: httpx.AsyncClient, provider: Provider) -> None:
    async with gpt(gateway) as client:
        item = await _compact(client)
        assert (await http.delete("/v1/sessions/s")).is_success
        with pytest.raises(openai.APIStatusError, match="was erased") as caught:
            await _create(client, [item, NEXT])
        assert caught.value.status_code == 410
        made = await http.put("/v1/sessions/s", json={"metadata": {"begun": "again"}})
        assert made.is_success, made.text
        for _ in range(2):
            with pytest.raises(openai.UnprocessableEntityError, match="does not have the conversation"):
                await _create(client, [item, NEXT])
            await _create(client, [{"role": "user", "content": "Another one."}])
    assert len(provider.calls()) == 2


@asynccontextmanager
async def _client(provider: Provider, database_url: str, **given: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(settings(provider, **given), database_url) as url, gpt(url) as client:
        yield client


async def test_compactions_may_be_left_to_the_upstream(database_url: str, provider: Provider) -> None:
    async with _client(provider, database_url) as client:
        item = await _compact(client)
    async with _client(provider, database_url, gateway_compaction="upstream") as client:
        provider.script.append(ProviderReply())
        await _create(client, [item, NEXT])
        assert len(_sent(provider)) == 4, "items that exist are read"
        raw = await client.responses.with_raw_response.compact(model=MODEL, input=FIRST)
        assert raw.headers["x-palimpsest-mode"] == "passthrough"
        with pytest.raises(openai.UnprocessableEntityError, match="cannot be forwarded"):
            await _compact(client, [item])
        triggered = await _create(client, [*FIRST, {"type": "compaction_trigger"}])
        assert triggered["x-palimpsest-reason"] == "compaction"


async def test_an_observer_passes_compactions_and_refuses_items(database_url: str, provider: Provider) -> None:
    async with _client(provider, database_url) as client:
        item = await _compact(client)
    async with _client(provider, database_url, gateway_mode="observe") as client:
        raw = await client.responses.with_raw_response.compact(model=MODEL, input=FIRST)
        assert raw.headers["x-palimpsest-mode"] == "passthrough"
        with pytest.raises(openai.UnprocessableEntityError, match="only observes"):
            await _create(client, [item, NEXT])
    assert [one.path for one in provider.requests] == ["/v1/responses/compact"]


async def test_a_call_without_a_session_and_with_a_foreign_item_passes(gateway: str, provider: Provider) -> None:
    foreign = {"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAAAABp"}
    async with gpt(gateway, {}) as client:
        raw = await client.responses.with_raw_response.compact(model=MODEL, input=FIRST)
        assert raw.headers["x-palimpsest-reason"] == "no-session"
        said = await _create(client, [foreign, NEXT])
        assert said["x-palimpsest-mode"] == "passthrough"
    assert provider.calls()[-1].body["input"][0] == foreign


async def test_a_call_with_an_item_fails_if_no_context_can_be_made(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    policy = {"window_tokens": 300, "reserve_tokens": 0, "summarize": {"enabled": False}}
    assert (await http.put("/v1/sessions/s", json={"policy": policy})).is_success
    async with gpt(gateway) as client:
        item = await _compact(client)
        with pytest.raises(openai.UnprocessableEntityError, match="smallest"):
            await _create(client, [item, {"role": "user", "content": "word " * 2_000}])
        with pytest.raises(openai.UnprocessableEntityError, match="cannot be forwarded unchanged"):
            await _create(client, [item, NEXT], conversation="conv_1")
    assert provider.requests == []
