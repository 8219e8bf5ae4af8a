"""A turn: one request for each model call, and a log that is the same as with a request for each part."""

import asyncio
from typing import Any

import pytest
from palimpsest import (
    AsyncPalimpsest,
    AsyncSession,
    ContextInfeasibleError,
    Palimpsest,
    ReplyNotLogged,
    ServerError,
    UnknownCallError,
)

from tests.client.agents import Asynchronous, Blocking
from tests.client.test_http import Cut, serve_with_cut
from tests.client.test_session import chat_response, logged
from tests.client.wire import ScriptedReply, provider, scripted

Agent = type[Blocking] | type[Asynchronous]
KEPT = ("type", "content", "call_id", "tool", "arguments", "is_error", "native")
QUESTION = "Where are orders 1 to 3?"


def lookups() -> Any:
    """Return a script of three answers: two parallel tool calls, one call that fails, and text."""
    return scripted(
        ScriptedReply("I look.", [("lookup", {"order": 1}), ("lookup", {"order": 2})]),
        ScriptedReply("Once more.", [("lookup", {"order": 3})]),
        ScriptedReply("They are sent off."),
    )


def lookup(call: Any) -> Any:
    order = call.arguments["order"]
    return TimeoutError("no answer") if order == 3 else {"order": order, "at": "sea"}


def posted(cut: Cut) -> list[str]:
    """Return the last part of the path of each POST."""
    return [path.rpartition("/")[2] for method, path, _ in cut.seen if method == "POST"]


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
@pytest.mark.parametrize(
    ("agent", "format", "stream"),
    [
        (Blocking, "openai", False),
        (Asynchronous, "openai", True),
        (Asynchronous, "openai-responses", False),
        (Blocking, "anthropic", True),
        (Asynchronous, "gemini", False),
    ],
)
async def test_three_model_calls_take_five_requests_and_give_the_same_log_and_contexts(
    database_url: str, agent: Agent, format: str, stream: bool
) -> None:
    async with serve_with_cut(database_url) as (cut, url):
        found = []
        for session in ("parts", "steps"):
            async with provider(lookups()) as models:
                one = agent(url, models.url, format, session)
                await one.begin()
                cut.seen.clear()
                turn = one.turn if session == "parts" else one.turn_in_steps
                told = await turn(QUESTION, lookup, stream=stream)
                requests = posted(cut)
                events, calls = await one.events(), await one.calls()
                await one.close()
            assert told.contents == ["I look.", "Once more.", "They are sent off."]
            log = [{name: getattr(event, name) for name in KEPT} for event in events]
            shown = [(call.sha256, call.head, call.outcome.usage) for call in calls]
            found.append((log, shown, models.requests))
            if session == "parts":
                rounds = ["context", "messages", "outcome", "events"]
                assert requests == ["messages", *rounds, *rounds, *rounds[:3]]
            else:
                assert requests == ["context", "context", "context", "messages", "outcome"]
    assert found[0] == found[1]
    assert len(found[0][1]) == 3


@pytest.mark.wing("audit")
async def test_an_answer_without_tool_calls_is_logged_when_send_returns(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        async with memory.turn("Hello.") as turn:
            await turn.send(lambda **_: chat_response("Dear!"))
            assert [content for _, content in await logged(memory)] == ["Hello.", "Dear!"]
            call = await memory.get_call(turn.id)
    assert call.outcome is not None


@pytest.mark.wing("audit")
async def test_an_answer_with_tool_calls_is_logged_at_the_end_of_the_block_whatever_ends_it(server: str) -> None:
    def blocking() -> list[str]:
        with Palimpsest(base_url=server) as client:
            memory = client.session("blocking", model="gpt-4o")
            with pytest.raises(ZeroDivisionError), memory.turn("Go.") as turn:
                turn.send(lambda **_: chat_response("", ("c", "lookup", "{}")))
                raise ZeroDivisionError
            return [event.type for event in memory.list_events()]

    assert await asyncio.to_thread(blocking) == ["user.message", "tool.call"]
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("asynchronous", model="gpt-4o")
        async with memory.turn("Go.") as turn:
            await turn.send(lambda **_: chat_response("", ("c", "lookup", "{}")))
            assert [kind for kind, _ in await logged(memory)] == ["user.message"]
        assert [kind for kind, _ in await logged(memory)] == ["user.message", "tool.call"]
        assert (await memory.get_call(turn.id)).outcome is not None
        await memory.results(["at sea"])
        assert [kind for kind, _ in await logged(memory)] == ["user.message", "tool.call", "tool.result"]


async def test_an_error_that_ends_a_turn_is_not_replaced(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url, max_retries=0) as client:
        memory = client.session("s", model="gpt-4o")
        cut.lose = lambda method, path: path.endswith("/messages")
        with pytest.raises(ZeroDivisionError):
            async with memory.turn("Go.") as turn:
                await turn.send(lambda **_: chat_response("", ("c", "lookup", "{}")))
                raise ZeroDivisionError
        with pytest.raises(ReplyNotLogged):
            async with memory.turn("Go.") as turn:
                await turn.send(lambda **_: chat_response("", ("d", "lookup", "{}")))
    assert "the model's answer was not logged" in caplog.text


async def test_what_is_appended_in_the_block_comes_after_the_answer(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        async with memory.turn("Go.") as turn:
            await turn.send(lambda **_: chat_response("", ("c1", "one", "{}"), ("c2", "two", "{}")))
            await memory.results({"c1": "at sea"})
            await turn.results({"c2": "ashore"})
            await turn.log(chat_response("", ("c3", "three", "{}")))
            with pytest.raises(ValueError, match="2 results for 1 open"):
                await turn.results(["a", "b"])
            await memory.user("Stop.")
            with pytest.raises(ValueError, match="no results"):
                await turn.results([])
        kinds = [kind for kind, _ in await logged(memory)]
    assert kinds == [
        "user.message",
        "tool.call",
        "tool.call",
        "tool.result",
        "tool.result",
        "tool.call",
        "user.message",
    ]


@pytest.mark.wing("audit")
async def test_of_a_refused_step_only_the_refused_part_fails(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        async with memory.turn("Go.") as turn:
            await turn.send(lambda **_: chat_response("", ("c", "lookup", "{}")))
            with pytest.raises(UnknownCallError):
                await turn.results({"c": "at sea", "of nobody": "ashore"})
            assert [kind for kind, _ in await logged(memory)] == ["user.message", "tool.call"]
            assert (await memory.get_call(turn.id)).outcome is not None
            first = turn.id
            await turn.results({"c": "at sea"})
        assert turn.id != first
        assert [kind for kind, _ in await logged(memory)] == ["user.message", "tool.call", "tool.result"]


async def test_a_refused_usage_does_not_stop_the_agent(server: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = chat_response("", ("c", "lookup", "{}")) | {"usage": {"prompt_tokens": -5}}
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o")
        async with memory.turn("Go.") as turn:
            await turn.send(lambda **_: answer)
            await turn.results(["at sea"])
            assert [message["role"] for message in turn.request["messages"]] == ["user", "assistant", "tool"]
    assert "was not reported" in caplog.text


async def test_a_context_that_cannot_be_made_leaves_the_answer_and_results_logged(server: str) -> None:
    async with AsyncPalimpsest(base_url=server) as client:
        memory = client.session("s", model="gpt-4o", max_tokens=2_000, policy={"summarize": {"enabled": False}})
        async with memory.turn("Go.") as turn:
            await turn.send(lambda **_: chat_response("", ("c", "lookup", "{}")))
            await memory.append_events(events=[{"type": "user.message", "content": "Too long. " * 3_000}])
            with pytest.raises(ContextInfeasibleError) as raised:
                await turn.results(["at sea"])
        kinds = [kind for kind, _ in await logged(memory)]
    assert kinds == ["user.message", "user.message", "tool.call", "tool.result"]
    assert raised.value.part == "context"
    assert raised.value.appended is not None and raised.value.appended.head == 4


async def answered(memory: AsyncSession, cut: Cut) -> ReplyNotLogged:
    """Answer with a tool call whose results cannot be sent, and return the error."""
    with pytest.raises(ReplyNotLogged) as raised:
        async with memory.turn("Go.") as turn:
            await turn.send(lambda **_: chat_response("I look.", ("c", "lookup", "{}")))
            cut.lose = lambda method, path: path.endswith("/context")
            await turn.results(["at sea"])
    return raised.value


async def test_an_answer_that_cannot_be_sent_is_not_lost_and_not_logged_twice(database_url: str) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url, max_retries=0) as client:
        memory = client.session("s", model="gpt-4o")
        error = await answered(memory, cut)
        kinds = [kind for kind, _ in await logged(memory)]
    assert error.reply.content == "I look."
    assert posted(cut) == ["context", "context"]
    assert kinds == ["user.message", "assistant.message", "tool.call", "tool.result"]  # only the response was lost


async def test_a_lost_response_of_a_step_is_asked_for_again(database_url: str) -> None:
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url) as client:
        memory = client.session("s", model="gpt-4o")
        lost = iter([False, True])
        cut.lose = lambda method, path: path.endswith("/context") and next(lost, False)
        async with memory.turn("Go.") as turn:
            await turn.send(lambda **_: chat_response("", ("c", "lookup", "{}")))
            await turn.results(["at sea"])
        kinds = [kind for kind, _ in await logged(memory)]
    keys = [headers["idempotency-key"] for method, _, headers in cut.seen if method == "POST"]
    assert len(keys) == 3 and keys[1] == keys[2] != keys[0]
    assert kinds == ["user.message", "tool.call", "tool.result"]


@pytest.mark.wing("recall")
async def test_a_recall_takes_two_requests(database_url: str) -> None:
    answers = iter([chat_response("", ("c", "recall", '{"query": "port"}')), chat_response("It is 8123.")])
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url) as client:
        memory = client.session("s", model="gpt-4o", recall=True)
        await memory.user("The port is 8123.")
        async with memory.call() as call:
            cut.seen.clear()
            await call.send(lambda **_: next(answers))
        kinds = [kind for kind, _ in await logged(memory)]
    assert posted(cut) == ["recall", "context", "messages", "outcome"]
    assert kinds == ["user.message", "tools", "tool.call", "tool.result", "assistant.message"]


@pytest.mark.wing("recall")
async def test_a_recall_that_fails_leaves_the_answer_logged(database_url: str) -> None:
    answer = chat_response("", ("c", "recall", '{"query": "port"}'))
    async with serve_with_cut(database_url) as (cut, url), AsyncPalimpsest(base_url=url, max_retries=0) as client:
        memory = client.session("s", model="gpt-4o", recall=True)
        await memory.user("The port is 8123.")
        async with memory.call() as call:
            cut.lose = lambda method, path: path.endswith("/recall")
            with pytest.raises(ServerError):
                await call.send(lambda **_: answer)
        kinds = [kind for kind, _ in await logged(memory)]
    assert kinds[-1] == "tool.call"
