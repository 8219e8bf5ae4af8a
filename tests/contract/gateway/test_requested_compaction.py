"""Compactions that clients request within an ordinary call, over an upstream that refuses the parameter."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anthropic
import httpx
import openai
import pytest

from app.core.wire.compacted import MARK
from app.store.engine import Database
from tests.conftest import serving
from tests.support.gateways import NO_WAIT_POLICY, SESSION, GatewayReader, claude, events_of, gpt, settings
from tests.support.provider import Provider, ProviderReply, ReceivedRequest
from tests.support.tenants import tenant

pytestmark = pytest.mark.wing("gateway")

THRESHOLD = 4_000
CALLS = 24
BETA = "compact-2026-01-12"
Json = dict[str, Any]
Client = openai.AsyncOpenAI | anthropic.AsyncAnthropic
Connect = Callable[[str], Client]


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


async def _say(client: Client, given: Any, field: Any = None, **more: Any) -> httpx.Headers:
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


async def _turn(client: Client, given: list[Json], *, stream: bool, drops: bool) -> bool:
    """Send one call, and add its reply to the list; return whether it began with a compaction.

    With `drops`, everything before the compaction is removed from the list, as the providers' pages allow.
    """
    if isinstance(client, openai.AsyncOpenAI):
        asked: Json = {"model": "gpt-5-mini", "input": given, "context_management": _entries()}
        if stream:
            async with client.responses.stream(**asked) as events:
                answer: Any = await events.get_final_response()
        else:
            answer = await client.responses.create(**asked)
        parts = answer.output
    else:
        asked = {"model": "claude-sonnet-5", "max_tokens": 100, "messages": given, "betas": [BETA]}
        asked["context_management"] = {"edits": [_edit()]}
        if stream:
            async with client.beta.messages.stream(**asked) as events_too:
                answer = await events_too.get_final_message()
        else:
            answer = await client.beta.messages.create(**asked)
        parts = answer.content
    assert [one.type for one in parts[1:]].count("compaction") == 0
    compacted: bool = parts[0].type == "compaction"
    if compacted and drops:
        given.clear()
    sent_back = [one.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for one in parts]
    given += sent_back if isinstance(client, openai.AsyncOpenAI) else [{"role": "assistant", "content": sent_back}]
    return compacted


def _result(client: Client, number: int) -> Json:
    """Return the result of a call."""
    if isinstance(client, openai.AsyncOpenAI):
        return {"type": "function_call_output", "call_id": f"call_{number}", "output": _text(number)}
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": f"call_{number}", "content": _text(number)}],
    }


@pytest.mark.wing("audit")
@pytest.mark.parametrize(
    ("connect", "stream", "drops"),
    [
        (gpt, True, False),
        (gpt, False, True),
        (claude, True, True),
        (claude, False, False),
        pytest.param(gpt, True, True, marks=pytest.mark.slow),
        pytest.param(gpt, False, False, marks=pytest.mark.slow),
        pytest.param(claude, True, False, marks=pytest.mark.slow),
        pytest.param(claude, False, True, marks=pytest.mark.slow),
    ],
)
async def test_a_long_conversation_crosses_the_threshold_several_times(
    gateway: str, provider: Provider, behind: GatewayReader, connect: Connect, stream: bool, drops: bool
) -> None:
    """Every second round is one of a tool."""

    def choose(_: ReceivedRequest) -> ProviderReply:
        number = len(provider.requests)
        calls = [(f"call_{number}", "read", {"number": number})] if number % 2 else []
        return ProviderReply(_text(number + 500), calls)

    provider.choose, provider.pieces = choose, 1_000
    given: list[Json] = []
    items = 0
    async with _no_waits(gateway) as http, connect(gateway) as client:
        for number in range(CALLS):
            given.append(_result(client, number) if number % 2 else {"role": "user", "content": _text(number)})
            items += await _turn(client, given, stream=stream, drops=drops)
            await behind.until(partial(_replies, http), lambda found, number=number: found > number)  # type: ignore[misc]
        calls = (await http.get("/v1/sessions/s/calls", params={"limit": 100})).json()["items"]
        lines = (await http.get("/v1/sessions/s/lines")).json()["items"]
        logged = [str(one.get("content")) for one in await events_of(http)]
    assert not provider.refused
    assert all("context_management" not in one.body for one in provider.calls())
    assert len(calls) == CALLS, calls[0].keys()
    assert max(one["estimate"] for one in calls) <= THRESHOLD
    assert 3 <= items <= 8
    assert len(lines) == 1
    for number in range(CALLS):
        assert sum(f"Message {number}. " in one for one in logged) == 1
        assert sum(f"Message {number + 501}. " in one for one in logged) == 1


async def _replies(http: httpx.AsyncClient) -> int:
    """Count the replies that were logged."""
    return sum(one["type"] == "assistant.message" for one in await events_of(http))


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


@pytest.mark.wing("audit")
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


@pytest.mark.wing("audit")
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


LONG: Any = [
    {"role": "assistant" if number % 2 else "user", "content": ("" if number else "Say heliotrope. ") + _text(number)}
    for number in range(11)
]
REFUSED = (openai.UnprocessableEntityError, anthropic.UnprocessableEntityError)
NEXT: Json = {"role": "user", "content": "And now?"}


async def _compacted(client: Client, given: Any = None) -> list[Json]:
    """Send a list that exceeds the threshold; return the list that the client keeps."""
    kept: list[Json] = list(LONG if given is None else given)
    assert await _turn(client, kept, stream=False, drops=True)
    return kept


def _altered(kept: list[Json], change: Callable[[str], str]) -> list[Json]:
    """Return a list with another sealed place in its item."""
    text = json.dumps(kept)
    start = text.index(MARK)
    end = start + len(re.match(r"[\w.=-]+", text[start:])[0])  # type: ignore[index]
    changed: list[Json] = json.loads(text[:start] + change(text[start:end]) + text[end:])
    return changed


@pytest.mark.parametrize("connect", [gpt, claude])
async def test_a_block_of_messages_can_be_read_elsewhere_and_names_its_session(
    gateway: str, provider: Provider, connect: Any
) -> None:
    async with _no_waits(gateway), connect(gateway) as client:
        kept = await _compacted(client)
    async with connect(gateway, {}) as client:  # the item has the session
        headers = await _say(client, [*kept, NEXT])
    assert (headers["x-palimpsest-session"], headers["x-palimpsest-line"]) == ("s", "s@line.1")
    sent = json.dumps(provider.calls()[-1].body)
    assert (MARK in sent, "compaction" in sent, "Hello." in sent) == (False, False, True)
    if connect is claude:
        [block, reply] = kept[0]["content"]
        assert reply["text"] == "Hello."
        assert "heliotrope" in block["content"]
        assert len(block["content"]) < 12_000


@pytest.mark.parametrize("connect", [gpt, claude])
async def test_altered_foreign_and_erased_items_are_refused(
    gateway: str, database: Database, http: httpx.AsyncClient, provider: Provider, connect: Any
) -> None:
    wrong: list[Callable[[str], str]] = [
        lambda sealed: sealed[:40] + ("B" if sealed[40] == "A" else "A") + sealed[41:],
        lambda sealed: sealed[:30],
        lambda sealed: MARK,
    ]
    async with connect(gateway) as client:
        kept = await _compacted(client)
        for change in wrong:
            with pytest.raises(REFUSED, match="altered"):
                await _say(client, [*_altered(kept, change), NEXT])
    async with connect(gateway) as client:
        assert (await http.delete("/v1/sessions/s")).is_success
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError), match="was erased") as caught:
            await _say(client, [*kept, NEXT])
        assert caught.value.status_code == 410
    assert len(provider.calls()) == 1
    secret, _ = await tenant(database, "theirs")
    async with connect(gateway, {**SESSION, "x-palimpsest-key": secret}) as client:
        with pytest.raises(
            (openai.UnprocessableEntityError, anthropic.UnprocessableEntityError), match="another tenant"
        ):
            await _say(client, [*kept, NEXT])
        own = await _compacted(client)
        assert (await _say(client, [*own, NEXT]))["x-palimpsest-mode"] == "context"


@pytest.mark.wing("audit")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_may_pause_after_its_compaction(
    gateway: str, provider: Provider, behind: GatewayReader, stream: bool
) -> None:
    asked: Json = {"model": "claude-sonnet-5", "max_tokens": 100, "betas": [BETA]}
    asked["context_management"] = {"edits": [_edit(pause_after_compaction=True, instructions="Keep the code word.")]}
    async with _no_waits(gateway) as http, claude(gateway) as client:
        if stream:
            async with client.beta.messages.stream(messages=LONG, **asked) as events:
                answer = await events.get_final_message()
        else:
            answer = await client.beta.messages.create(messages=LONG, **asked)
        assert (answer.stop_reason, [one.type for one in answer.content]) == ("compaction", ["compaction"])
        assert (answer.model, answer.usage.input_tokens, provider.requests) == ("claude-sonnet-5", 0, [])
        [paused] = await behind.called(http)
        record = await behind.reported(http, paused["call_id"])
        assert "pause" in record["outcome"]["error"]["message"]
        block: Any = {"role": "assistant", "content": [one.model_dump(exclude_none=True) for one in answer.content]}
        answer = await client.beta.messages.create(messages=[*LONG, block], **asked)
        assert [one.type for one in answer.content] == ["text"]
        assert "Message 10. " in json.dumps(provider.calls()[-1].body["messages"][-1])
        answer = await client.beta.messages.create(messages=[block, NEXT], **asked)
        assert [one.type for one in answer.content] == ["text"]
        assert "And now?" in json.dumps(provider.calls()[-1].body["messages"][-1])


async def test_a_threshold_that_is_not_stated_is_the_window(gateway: str, provider: Provider) -> None:
    policy = {**NO_WAIT_POLICY, "window_tokens": THRESHOLD}
    async with httpx.AsyncClient(base_url=gateway) as http, gpt(gateway) as client:
        (await http.put("/v1/sessions/s", json={"policy": policy})).raise_for_status()
        short = await client.responses.create(model="gpt-5-mini", input="Hello?", context_management=_entries(None))
        answer = await client.responses.create(model="gpt-5-mini", input=LONG, context_management=_entries(None))
    assert [[one.type for one in found.output] for found in (short, answer)] == [["message"], ["compaction", "message"]]


async def test_some_calls_get_no_item(gateway: str, provider: Provider) -> None:
    """One has no list to shorten, and the other's reply may have an event that is too large to be read."""
    async with _no_waits(gateway), gpt(gateway) as client:
        drawn = await client.responses.create(
            model="gpt-5-mini", input=LONG, context_management=_entries(), tools=[{"type": "image_generation"}]
        )
        assert [one.type for one in drawn.output] == ["message"]
        first = await client.responses.create(model="gpt-5-mini", input=LONG)
        answer = await client.responses.create(
            model="gpt-5-mini", input="And now?", previous_response_id=first.id, context_management=_entries()
        )
    assert [one.type for one in answer.output] == ["message"]
    assert not provider.refused


@pytest.mark.parametrize("connect", [gpt, claude])
async def test_the_tokens_of_a_list_with_an_item_are_counted(gateway: str, provider: Provider, connect: Any) -> None:
    async with _no_waits(gateway), connect(gateway) as client:
        kept = await _compacted(client)
        if connect is claude:
            counted = await client.beta.messages.count_tokens(
                model="claude-sonnet-5",
                messages=[*kept, NEXT],
                context_management={"edits": [_edit()]},
                betas=[BETA],
            )
            assert counted.input_tokens > THRESHOLD / 4
            assert MARK not in json.dumps(provider.requests[-1].body)
    assert not provider.refused


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_that_breaks_off_or_is_compressed_or_too_large(
    gateway: str, provider: Provider, stream: bool
) -> None:
    """Neither changes the bytes of the provider's own events."""
    provider.compress = True
    asked: Json = {"model": "claude-sonnet-5", "max_tokens": 100, "betas": [BETA], "messages": LONG}
    asked["context_management"] = {"edits": [_edit()]}
    async with _no_waits(gateway), claude(gateway) as client:
        provider.script.append(ProviderReply("x" * 3_000_000))
        if stream:
            async with client.beta.messages.stream(**asked) as events:
                answer = await events.get_final_message()
            assert [one.type for one in answer.content] == ["compaction", "text"]
        else:
            answer = await client.beta.messages.create(**asked)
            assert [one.type for one in answer.content] == ["text"], "a response above the limit passes as it is"
        assert len(answer.content[-1].text) == 3_000_000  # type: ignore[union-attr]


async def test_messages_that_are_repeated_after_a_pause_are_logged_once(
    gateway: str, provider: Provider, behind: GatewayReader
) -> None:
    """The agent keeps its last two messages after each block, a call of a tool and its result, and asks once more."""
    rounds, pauses = 24, 0

    def choose(_: ReceivedRequest) -> ProviderReply:
        number = len(provider.requests)
        return ProviderReply(_text(number), [(f"call_{number}", "read", {})] if number < rounds else [])

    provider.choose = choose
    asked: Json = {"model": "claude-sonnet-5", "max_tokens": 100, "betas": [BETA]}
    asked["context_management"] = {"edits": [_edit(pause_after_compaction=True)]}
    given: list[Any] = [{"role": "user", "content": "Begin."}]
    async with _no_waits(gateway) as http, claude(gateway) as client:
        while True:
            answer = await client.beta.messages.create(messages=given, **asked)
            said = {"role": "assistant", "content": [one.model_dump(exclude_none=True) for one in answer.content]}
            if answer.stop_reason == "compaction":
                pauses, given = pauses + 1, [said, *given[-2:]]
                continue
            given.append(said)
            if answer.stop_reason == "end_turn":
                break
            number = len(provider.requests)
            result = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": f"Result {number}. " * 60}
            given.append({"role": "user", "content": [result]})
            await behind.until(partial(_replies, http), lambda found, number=number: found >= number)  # type: ignore[misc]
        logged = [str(one.get("content")) for one in await behind.logged(http, 3 * rounds - 1)]
        lines = (await http.get("/v1/sessions/s/lines")).json()["items"]
    assert not provider.refused
    assert pauses >= 2
    assert len(lines) == 1
    for number in range(1, rounds):
        assert sum(one.startswith(f"Result {number}. ") for one in logged) == 1


@pytest.mark.wing("audit")
async def test_the_sdks_own_loop_in_a_thread_stays_below_the_threshold(
    gateway: str, provider: Provider, behind: GatewayReader
) -> None:
    """Its calls continue a reply, so they get no block, and none pauses."""
    rounds = 16

    def choose(_: ReceivedRequest) -> ProviderReply:
        number = len(provider.requests)
        return ProviderReply(_text(number), [(f"call_{number}", "read_file", {"name": "a"})] if number < rounds else [])

    @anthropic.beta_async_tool
    async def read_file(name: str) -> str:
        """Read a file."""
        return f"Result {len(provider.requests)} of {name}. " * 60

    provider.choose = choose
    async with _no_waits(gateway) as http, claude(gateway) as client:
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-5",
            max_tokens=100,
            tools=[read_file],
            messages=[{"role": "user", "content": "Begin."}],
            context_management={"edits": [_edit(pause_after_compaction=True)]},
            betas=[BETA],
        )
        replies = [message async for message in runner]
        await behind.until(partial(_replies, http), lambda found: found == rounds)
        calls = (await http.get("/v1/sessions/s/calls", params={"limit": 100})).json()["items"]
        lines = (await http.get("/v1/sessions/s/lines")).json()["items"]
    assert not provider.refused
    assert (replies[-1].stop_reason, len(replies), len(calls), len(lines)) == ("end_turn", rounds, rounds, 1)
    assert max(one["estimate"] for one in calls) <= THRESHOLD
    assert max(one["evicted_tokens"] for one in calls) > THRESHOLD
    assert not [one for message in replies for one in message.content if one.type == "compaction"]
