"""A session's other functions: prompts and tools, results, branches, explanations, and refusals."""

import asyncio
import json
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, OpenAI
from palimpsest import AsyncPalimpsest, AsyncSession, Palimpsest, PalimpsestError, RecallLoop, ToolCall
from palimpsest._speaking import _pair_with_calls
from palimpsest.formats.anthropic import MessageStream
from palimpsest.formats.openai_chat import ChatStream

from tests.client.agents import TOOLS
from tests.client.wire import ScriptedReply, provider, scripted

CALLS = [ToolCall("a", "one", "{}"), ToolCall("b", "two", "{}")]


def chat_response(text: str = "", *calls: tuple[str, str, str]) -> dict[str, Any]:
    """Return a chat model's response."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": given}} for id, name, given in calls
        ]
    return {"choices": [{"message": message, "finish_reason": "stop"}]}


async def logged(memory: AsyncSession) -> list[tuple[str, Any]]:
    return [(event.type, event.content) async for event in memory.list_events()]


def test_results_find_their_calls() -> None:
    assert list(_pair_with_calls(["x", {"y": 1}], CALLS)) == [("a", "x"), ("b", {"y": 1})]
    assert list(_pair_with_calls({"b": 2, "a": 1}, CALLS)) == [("b", 2), ("a", 1)]
    assert list(_pair_with_calls([(CALLS[1], 2), ("a", 1)], CALLS)) == [("b", 2), ("a", 1)]
    native = [
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"type": "function_call_output", "call_id": "b", "output": "y"},
    ]
    assert list(_pair_with_calls(native, CALLS)) == [("a", "x"), ("b", "y")]
    assert list(_pair_with_calls([{"type": "tool_result", "tool_use_id": "b", "content": "z"}], CALLS)) == [("b", "z")]
    with pytest.raises(ValueError, match="1 results for 2 open tool calls"):
        list(_pair_with_calls(["x"], CALLS))
    assert list(_pair_with_calls("x", CALLS[:1])) == [("a", "x")]
    assert list(_pair_with_calls({"of another process": "x"}, [])) == [("of another process", "x")]
    with pytest.raises(ValueError, match="put a single result in a list"):
        list(_pair_with_calls({"temperature": 20}, CALLS[:1]))


def test_arguments_are_parsed_or_said_to_be_wrong() -> None:
    assert ToolCall("a", "one", '{"x": 1}').arguments == {"x": 1}
    assert ToolCall("a", "one", "").arguments == {}
    assert ToolCall("a", "one", "ls -l", free_text=True).arguments == {"input": "ls -l"}
    for text in ('{"x": 1', "[1]"):
        with pytest.raises(ValueError, match="the arguments of one are not"):
            _ = ToolCall("a", "one", text).arguments


async def test_results_of_every_kind(server: str) -> None:
    parts = [{"type": "text", "text": "seen"}]
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        await memory.user("Go.")
        async with memory.call() as call:
            calls = [(f"c{n}", "tool", "{}") for n in range(5)]
            reply = await call.log(chat_response("", *calls))
        assert [one.id for one in reply.tool_calls] == ["c0", "c1", "c2", "c3", "c4"]
        await memory.results(["text", {"n": 1}, parts, TimeoutError("no answer"), None])
        events = [event async for event in memory.list_events(after=6)]
        with pytest.raises(ValueError, match="no results"):
            await memory.results([])
        with pytest.raises(ValueError, match="1 results for 0 open"):
            await memory.results(["again"])
    assert [event.content for event in events] == ["text", '{"n": 1}', parts, "TimeoutError: no answer", "null"]
    assert [event.is_error for event in events] == [None, None, None, True, None]


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
async def test_the_prompt_and_tools_are_appended_once_and_again_when_changed(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        for prompt in ("A", "A", "B", "B", "A", "A"):
            memory = client.session("s", model="gpt-4o", max_tokens=20_000)  # a program that starts again
            await memory.system(prompt)
            await memory.tools([TOOLS["openai"]])
            await memory.user("Go.")
            async with memory.call():
                pass
        prompts = [content for kind, content in await logged(memory) if kind == "system.prompt"]
        tools = [content for kind, content in await logged(memory) if kind == "tools"]
    assert prompts == ["A", "B", "A"]
    assert len(tools) == 1


async def test_a_fork_continues_independently(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o", max_tokens=9_000)
        await memory.system("A")
        await memory.user("One.")
        await memory.user("Two.")
        other = await memory.fork("t", at=2)
        await other.user("Three.")
        async with other.call() as call:
            assert [message["content"] for message in call.request["messages"]] == ["A", "One.", "Three."]
            assert call.tokens.limit == 9_000
        assert (await other.get_session()).parent is not None
        assert [content for _, content in await logged(memory)] == ["A", "One.", "Two."]


async def test_whole_conversations_lines_and_rewinds(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        said = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}]
        context = await memory.post_context(format="openai", messages=said, system="A")
        assert context.plan is not None and [one.action for one in context.plan] == ["keep", "keep"]
        assert context.appended is not None and [one.index for one in context.appended] == [None, 0, 1]
        rewound = await memory.rewind(2)
        assert rewound.head == (await memory.get_session()).head == 2
        lines = [line async for line in memory.list_lines()]
    assert [(line.id, line.current) for line in lines] == [("s@line.1", False), ("s@line.2", True)]
    assert lines[0].head == 3


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
async def test_evictions_are_described_in_words(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o", max_tokens=6_000, policy={"summarize": {"enabled": False}})
        for n in range(12):
            await memory.user(f"Question {n}.")
            async with memory.call() as call:
                await call.log(chat_response("", (f"c{n}", "read", "{}")))
            await memory.results(["A line of a long file that nobody needs any more.\n" * 100])
            async with memory.call() as call:
                if n == 0:
                    assert str(call.left_out) == "nothing was left out"
                await call.log(chat_response("Done."))
        async with memory.call() as call:
            said, tokens = str(call.left_out), call.left_out.tokens
        explained = await memory.explain(3)
    assert "stubbed by" in said or "dropped by" in said
    assert tokens == sum(one.tokens_saved for one in call.left_out) > 1_000
    assert str(explained).startswith("event 3 (tool.result, ")
    assert explained.changes[0].disposition == "verbatim"
    assert len(explained.changes) > 1
    assert f"from call {explained.changes[1].call_id} on" in str(explained)


async def test_a_view_has_its_own_window_and_leaves_the_session_alone(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o", metadata={"user": 42})
        await memory.user("Hello.")
        title = client.session(
            "s",
            view="title",
            model="claude-haiku-5-5",
            format="anthropic",
            max_tokens=4_000,
            policy={"dialogue_window": {"turns": 2}},
        )
        async with title.call() as call:
            assert (call.context.view, call.tokens.limit, call.context.model) == ("title", 4_000, "claude-haiku-5-5")
            assert call.context.policy.name != "default"
        session = await memory.get_session()
    assert (session.model, session.policy.name, session.metadata) == ("gpt-4o", "default", {"user": 42})


@pytest.mark.wing("recall")
async def test_recall_is_declined_or_given_without_other_tools(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        declined = client.session("a", model="gpt-4o", recall=False)
        await declined.tools([TOOLS["openai"]])
        await declined.user("Go.")
        async with declined.call() as call:
            assert [tool["function"]["name"] for tool in call.request["tools"]] == ["lookup"]
            reply = await call.send(lambda **_: chat_response("", ("c", "recall", "{}")))
            assert [one.name for one in reply.tool_calls] == ["recall"]  # it is left to the agent
        given = client.session("b", model="gpt-4o", recall=True)
        await given.user("Go.")
        async with given.call() as call:
            assert [tool["function"]["name"] for tool in call.request["tools"]] == ["recall"]
        own = {"type": "function", "function": {"name": "recall", "parameters": {"type": "object", "properties": {}}}}
        with pytest.raises(ValueError, match="named recall too"):
            await client.session("c").tools([own])


@pytest.mark.wing("recall")
async def test_invalid_arguments_of_a_recall_are_returned_to_the_model_and_a_loop_ends(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        await memory.tools([TOOLS["openai"]])
        await memory.user("Go.")
        asked = 0

        def model(**_: Any) -> dict[str, Any]:
            nonlocal asked
            asked += 1
            arguments = ('{"seqs": "all"}', "no JSON", '{"query": "go"}')[asked % 3]
            return chat_response("", (f"c{asked}", "recall", arguments))

        with pytest.raises(RecallLoop):
            async with memory.call() as call:
                await call.send(model)
        results = [event async for event in memory.list_events() if event.type == "tool.result"]
        async with memory.call() as call:  # no call is open: the agent can continue
            assert (await call.send(lambda **_: chat_response("Enough."))).content == "Enough."
    assert asked == len(results) == 8
    assert [event.is_error for event in results[:3]] == [True, None, True]


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
async def test_s1_07_that_something_was_visible_already_is_recorded_in_the_log(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        await memory.tools([TOOLS["openai"]])
        await memory.user("The port is 8123.")
        answers = iter(
            [chat_response("", ("c1", "recall", '{"seqs": [2], "query": "port"}')), chat_response("It is 8123.")]
        )
        async with memory.call() as call:
            first = call.id
            await call.send(lambda **_: next(answers))
        result = next(
            event
            for event in [event async for event in memory.list_events()]
            if event.call_id == "c1" and event.type == "tool.result"
        )
        async with memory.call() as call:
            later = await memory.get_call(call.id)
            seen = await memory.explain(result.seq)
    recorded = json.loads(result.content)
    assert recorded["call_id"] == first
    assert [(item["seq"], item["visible"], "content" in item) for item in recorded["items"]] == [(2, True, False)]
    assert any(run.from_seq <= result.seq <= run.to_seq for run in later.dispositions)
    assert [item.disposition for item in seen.calls] == ["verbatim", "verbatim"]


@pytest.mark.wing("recall")
async def test_recalls_next_to_other_calls_leave_those_to_the_agent(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        await memory.tools([TOOLS["openai"]])
        await memory.user("Go.")
        async with memory.call() as call:
            answer = chat_response("", ("c1", "lookup", '{"order": 1}'), ("c2", "recall", '{"query": "go"}'))
            reply = await call.send(lambda **_: answer)
        assert [one.id for one in reply.tool_calls] == ["c1"]
        await memory.results(["at sea"])
        async with memory.call() as call:
            roles = [message["role"] for message in call.request["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


@pytest.mark.wing("recall")
async def test_a_stream_that_is_left_early_is_partial_and_one_that_had_ended_is_whole(server: str) -> None:
    script = scripted(
        ScriptedReply("One two three four."),
        ScriptedReply("I look.", [("lookup", {"order": 1})]),
        ScriptedReply("Done."),
    )
    async with (
        provider(script) as models,
        AsyncOpenAI(base_url=f"{models.url}/v1", api_key="k") as openai,
        AsyncPalimpsest(base_url=server) as client,
    ):
        memory = client.session("s", model="gpt-4o")
        await memory.tools([TOOLS["openai"]])
        await memory.user("Go.")
        async with memory.call() as call:
            reply = await call.send(openai.chat.completions.create, stream=True)
            with pytest.raises(PalimpsestError, match="read the reply to its end"):
                _ = reply.content
            async for chunk in reply:
                if "two" in (chunk.choices[0].delta.content or ""):
                    break
        async with memory.call() as call:
            reply = await call.send(openai.chat.completions.create, stream=True)
            async for chunk in reply:
                if chunk.choices[0].finish_reason is not None:
                    break
        assert [one.name for one in reply.tool_calls] == ["lookup"]
        await memory.results(["at sea"])
        events = [event async for event in memory.list_events(after=2)]
    assert [event.type for event in events] == ["assistant.message", "assistant.message", "tool.call", "tool.result"]
    assert (events[0].content, events[0].metadata) == ("One two", {"partial": True})
    assert events[1].metadata is None


async def test_a_blocking_stream_is_read_to_its_end_by_whoever_asks(server: str) -> None:
    def blocking(url: str) -> list[str]:
        with Palimpsest(base_url=server) as client, OpenAI(base_url=f"{url}/v1", api_key="k") as openai:
            memory = client.session("s", model="gpt-4o")
            memory.user("Go.")
            with memory.call() as call:
                contents = [call.send(openai.chat.completions.create, stream=True).content]
            with pytest.raises(PalimpsestError, match="not read to its end"), memory.call() as call:
                reply = call.send(openai.chat.completions.create, stream=True)
                next(iter(reply))
                reply.close()
                _ = reply.content
            return contents

    async with provider(scripted(ScriptedReply("All of it."))) as models:
        assert await asyncio.to_thread(blocking, models.url) == ["All of it."]


@pytest.mark.wing("recall")
async def test_the_sdks_streaming_helpers(server: str) -> None:
    script = scripted(ScriptedReply("I look.", [("lookup", {"order": 1})]), ScriptedReply("It is at sea."))
    async with (
        provider(script) as models,
        AsyncPalimpsest(base_url=server) as client,
        AsyncAnthropic(base_url=models.url, api_key="k") as anthropic,
    ):
        memory = client.session("s", model="claude-sonnet-5-5", format="anthropic")
        await memory.tools([TOOLS["anthropic"]])
        await memory.user("Where is order 1?")
        async with memory.call() as call:
            reply = await call.send(anthropic.messages.stream, max_tokens=100)
            kinds = [event.type async for event in reply]
        assert reply.tool_calls[0].arguments == {"order": 1}
        assert "text" in kinds and "message_stop" in kinds
        await memory.results(["at sea"])
    async with (
        provider(script) as models,
        AsyncPalimpsest(base_url=server) as client,
        AsyncOpenAI(base_url=f"{models.url}/v1", api_key="k") as openai,
    ):
        memory = client.session("t", model="gpt-4o")
        await memory.user("Where is order 1?")
        async with memory.call() as call:
            reply = await call.send(openai.chat.completions.stream)
            kinds = [event.type async for event in reply]
        assert reply.content == "It is at sea."
        assert "content.delta" in kinds


async def test_unsendable_requests_raise_immediately(server: str) -> None:
    def blocking() -> None:
        with Palimpsest(base_url=server) as client:
            with pytest.raises(ValueError, match="format must be one of"):
                client.session("s", format="blocks")
            memory = client.session("s", model="gpt-4o")
            memory.user("Go.")
            with memory.call() as call:
                with pytest.raises(TypeError, match="messages comes from the session"):
                    call.send(lambda **_: chat_response(), messages=[])
                with pytest.raises(TypeError, match="use AsyncPalimpsest"):
                    call.send(AsyncOpenAI(api_key="k", base_url="http://x").chat.completions.create)
                with pytest.raises(TypeError, match="the model's answer is a str"):
                    call.send(lambda **_: "text")
            with pytest.raises(RuntimeError, match="enter the call first"):
                _ = memory.call().id

    await asyncio.to_thread(blocking)


@pytest.mark.wing("audit")
async def test_a_provider_can_be_called_directly(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o", policy={"summarize": {"enabled": False}})
        await memory.user("Go.")
        async with memory.call() as call:
            first = call.id
            assert call.arguments(temperature=0) == {**call.request, "model": "gpt-4o", "temperature": 0}
            assert not await call.failed(RuntimeError("the line is dead"))
            assert await call.failed(RuntimeError("This model's maximum context length is 8000 tokens."))
            assert call.id != first
            reply = await call.log(chat_response("Done."))
        assert reply.call_id == call.id
        assert (await memory.get_call(call.id)).retry_of == first


def test_chunks_of_other_providers() -> None:
    stream = ChatStream()
    for delta in (
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "why "},
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
        {
            "reasoning_content": "not",
            "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "}"}}],
        },
    ):
        stream.feed({"id": "x", "choices": [{"index": 0, "delta": delta}]})
    message = stream.response()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "ab",
        "reasoning_content": "why not",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_signed_reasoning_and_cut_arguments_come_together_whole() -> None:
    stream = MessageStream()
    stream.feed(
        {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {"input_tokens": 5}}}
    )
    block = {"type": "thinking", "thinking": "", "signature": ""}
    stream.feed({"type": "content_block_start", "index": 0, "content_block": block})
    for delta in (
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "signature_delta", "signature": "c2ln"},
    ):
        stream.feed({"type": "content_block_delta", "index": 0, "delta": delta})
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    stream.feed({"type": "content_block_start", "index": 1, "content_block": use})
    stream.feed(
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a'}}
    )
    stream.feed({"type": "content_block_stop", "index": 1})
    stream.feed({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}})
    response = stream.response()
    assert response["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
        {"type": "tool_use", "id": "t", "name": "f", "input": '{"a'},
    ]
    assert response["usage"] == {"input_tokens": 5, "output_tokens": 9}
