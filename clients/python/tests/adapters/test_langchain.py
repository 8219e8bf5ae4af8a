"""The LangChain middleware in agents of `create_agent`, run by LangGraph."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from palimpsest.langchain import PalimpsestMiddleware, PalimpsestRecallMiddleware
from tests.adapters.support import (
    POLICY,
    ROOM,
    ROUNDS,
    TOO_LONG,
    TROUBLES,
    Gate,
    expected_warnings,
    report,
    size,
    warnings_of,
)

PROMPT = "You look after depots."
DONE = "All depots are in order."


@tool
def depot(number: int) -> str:
    """All that is known of a depot."""
    return report(number)


def calls(*numbers: int, text: str = "") -> AIMessage:
    """Return a response that calls for depots."""
    return AIMessage(
        text,
        tool_calls=[{"name": "depot", "args": {"number": n}, "id": f"call_{n}", "type": "tool_call"} for n in numbers],
    )


class Scripted(BaseChatModel):
    """A model that responds by a script; an exception in it is raised. It records its inputs."""

    script: list[Any]
    seen: list[list[BaseMessage]]
    model_name: str = "gpt-4o"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        said = self.script[min(len(self.seen), len(self.script) - 1)]
        self.seen.append(list(messages))
        if isinstance(said, Exception):
            raise said
        tokens = size([message.content for message in messages])
        usage: dict[str, Any] = {"input_tokens": tokens, "output_tokens": 7, "total_tokens": tokens + 7}
        if len(self.seen) > 1:  # the first response names no cache reads
            usage["input_token_details"] = {"cache_read": 3}
        return said.model_copy(update={"usage_metadata": usage})

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        said = self._answer(messages)
        for word in str(said.content).split(" ") if said.content else ():
            yield ChatGenerationChunk(message=AIMessageChunk(word + " "))
        chunks = [
            {"name": call["name"], "args": json.dumps(call["args"]), "id": call["id"], "index": at}
            for at, call in enumerate(said.tool_calls)
        ]
        yield ChatGenerationChunk(
            message=AIMessageChunk("", tool_call_chunks=chunks, usage_metadata=said.usage_metadata)
        )

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            yield chunk


def overflow() -> Exception:
    """Return the error of a provider whose window was exceeded."""
    error = ValueError(TOO_LONG)
    error.status_code, error.code = 400, "context_length_exceeded"  # type: ignore[attr-defined]
    return error


def agent_of(palimpsest: Gate, model: Scripted, **settings: Any) -> Any:
    """Return an agent with a checkpointer."""
    given = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    given |= settings
    return create_agent(
        model, [depot], system_prompt=PROMPT, middleware=[PalimpsestMiddleware(**given)], checkpointer=InMemorySaver()
    )


def in_thread(sid: str) -> Any:
    """Return the configuration that names a thread and permits many rounds."""
    return {"configurable": {"thread_id": sid}, "recursion_limit": 200}


def user_input(text: str) -> Any:
    """Return a user message as input of the graph."""
    return {"messages": [HumanMessage(text)]}


def run_blocking(agent: Any, sid: str, text: str) -> list[BaseMessage]:
    """Run with `invoke`."""
    found: list[BaseMessage] = agent.invoke(user_input(text), in_thread(sid))["messages"]
    return found


def run_async(agent: Any, sid: str, text: str) -> list[BaseMessage]:
    """Run with `ainvoke`, in an event loop of its own."""

    async def run() -> Any:
        return (await agent.ainvoke(user_input(text), in_thread(sid)))["messages"]

    found: list[BaseMessage] = asyncio.run(run())
    return found


def run_streamed(agent: Any, sid: str, text: str) -> list[BaseMessage]:
    """Run with `stream`, token by token."""
    tokens = list(agent.stream(user_input(text), in_thread(sid), stream_mode="messages"))
    assert len(tokens) > 1
    found: list[BaseMessage] = agent.get_state(in_thread(sid)).values["messages"]
    return found


def run_async_streamed(agent: Any, sid: str, text: str) -> list[BaseMessage]:
    """Run with `astream`."""

    async def run() -> Any:
        return [one async for one in agent.astream(user_input(text), in_thread(sid), stream_mode="messages")]

    assert len(asyncio.run(run())) > 1
    found: list[BaseMessage] = agent.get_state(in_thread(sid)).values["messages"]
    return found


RUNS = pytest.mark.parametrize("run", [run_blocking, run_async, run_streamed, run_async_streamed])
Run = Callable[[Any, str, str], list[BaseMessage]]


@RUNS
def test_twenty_rounds_in_a_quarter_of_their_window(palimpsest: Gate, sid: str, run: Run) -> None:
    model = Scripted(script=[*(calls(n) for n in range(ROUNDS)), AIMessage(DONE)], seen=[])
    state = run(agent_of(palimpsest, model), sid, "Look at all depots.")
    assert str(state[-1].content).strip() == DONE
    assert len(state) == 2 * ROUNDS + 2, "the state keeps everything"
    assert size([message.content for message in state]) > 3 * ROOM
    for sent in model.seen:
        assert size([message.content for message in sent]) < ROOM
        assert isinstance(sent[0], SystemMessage)
    assert len(palimpsest.contexts) == len(model.seen) == ROUNDS + 1
    assert palimpsest.contexts[-1][1]["evictions"]
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    assert [outcome["usage"]["output_tokens"] for outcome in palimpsest.outcomes] == [7] * (ROUNDS + 1)
    assert "cache_read_tokens" not in palimpsest.outcomes[0]["usage"]
    assert palimpsest.outcomes[-1]["usage"]["cache_read_tokens"] == 3
    events = palimpsest.events(sid)
    assert [event.type for event in events[:3]] == ["system.prompt", "tools", "user.message"]
    assert (len(events), events[-1].type) == (2 * ROUNDS + 4, "assistant.message")


def test_kept_messages_are_the_same_objects_as_in_the_state(palimpsest: Gate, sid: str) -> None:
    handed: list[tuple[list[BaseMessage], list[BaseMessage]]] = []

    class Watching(PalimpsestMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            def watched(fitted: Any) -> Any:
                handed.append((request.messages, fitted.messages))
                return handler(fitted)

            return super().wrap_model_call(request, watched)

    model = Scripted(script=[*(calls(n, n + 100) for n in range(8)), AIMessage(DONE)], seen=[])
    watching = Watching(client=palimpsest.client(), max_tokens=ROOM, policy=POLICY)
    agent = create_agent(model, [depot], system_prompt=PROMPT, middleware=[watching])
    agent.invoke(user_input("Look at all depots."), in_thread(sid))
    own, fitted = handed[-1]
    ids = {id(message) for message in own}
    same = [message for message in fitted if id(message) in ids]
    assert len(same) >= 4
    assert fitted[-1] is own[-1]
    others = [message for message in fitted if id(message) not in ids]
    assert others or len(fitted) < len(own)
    for message in fitted:  # every call has its result, and every result its call
        if isinstance(message, ToolMessage):
            assert any(
                message.tool_call_id == call["id"]
                for one in fitted
                if isinstance(one, AIMessage)
                for call in one.tool_calls
            )


@RUNS
def test_parallel_calls_and_a_conversation_that_goes_on(palimpsest: Gate, sid: str, run: Run) -> None:
    model = Scripted(
        script=[calls(1, 2, text="I look."), AIMessage("Both are fine."), AIMessage("You are welcome.")], seen=[]
    )
    agent = agent_of(palimpsest, model, max_tokens=60_000)
    run(agent, sid, "Depots 1 and 2?")
    run(agent, sid, "Thank you.")
    kinds = ["user.message", "assistant.message", "tool.call", "tool.call", "tool.result", "tool.result"]
    kinds += ["assistant.message", "user.message", "assistant.message"]
    assert [event.type for event in palimpsest.events(sid)][2:] == kinds
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    assert len(model.seen[-1]) == 7


@RUNS
def test_a_request_that_was_too_long_is_retried_with_less(palimpsest: Gate, sid: str, run: Run) -> None:
    model = Scripted(script=[*(calls(n) for n in range(8)), overflow(), AIMessage(DONE)], seen=[])
    state = run(agent_of(palimpsest, model, max_tokens=20_000), sid, "Look at all depots.")
    assert str(state[-1].content).strip() == DONE
    assert [bool(outcome.get("error")) for outcome in palimpsest.outcomes] == [False] * 8 + [True, False]
    first, second = (size([message.content for message in sent]) for sent in model.seen[-2:])
    assert second < first


@RUNS
def test_an_error_is_reported_and_raised(palimpsest: Gate, sid: str, run: Run) -> None:
    model = Scripted(script=[RuntimeError("overloaded")], seen=[])
    with pytest.raises(RuntimeError, match="overloaded"):
        run(agent_of(palimpsest, model), sid, "Hello.")
    assert palimpsest.outcomes[-1]["error"]["message"] == "overloaded"
    assert len(model.seen) == 1


@RUNS
def test_the_server_away_and_back(palimpsest: Gate, sid: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    model = Scripted(script=[calls(1), calls(2), AIMessage("One."), calls(3), AIMessage("Two.")], seen=[])
    agent = agent_of(palimpsest, model)
    palimpsest.mode = "failing"
    state = run(agent, sid, "Depots?")
    assert str(state[-1].content).strip() == "One."
    assert len(model.seen[-1]) == 6, "all of it, as it is"
    assert len([record for record in caplog.records if "unreachable" in record.message]) == 1
    palimpsest.mode = "open"
    state = run(agent, sid, "And depot 3?")
    assert str(state[-1].content).strip() == "Two."
    assert len([record for record in caplog.records if "is back at" in record.message]) == 1
    results = [event for event in palimpsest.events(sid) if event.type == "tool.result"]
    assert len(results) == 3, "what was said meanwhile is logged afterwards"


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_continues_whatever_the_server_does(
    palimpsest: Gate, sid: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    model = Scripted(script=[calls(1), calls(2), AIMessage("One."), calls(3), AIMessage("Two.")], seen=[])
    middleware = PalimpsestMiddleware(client=palimpsest.client(), timeout=palimpsest.timeout)
    agent = create_agent(model, [depot], middleware=[middleware], checkpointer=InMemorySaver())
    assert str(run_blocking(agent, sid, "Depots?")[-1].content) == "One."
    assert middleware.passed_through == {sid: 2 if trouble == "midway" else 3}
    palimpsest.mode = "open"
    assert str(run_blocking(agent, sid, "And depot 3?")[-1].content) == "Two."
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == 3


@pytest.mark.parametrize("run", [run_blocking, run_async])
def test_the_recall_tool_returns_evicted_content(palimpsest: Gate, sid: str, run: Run) -> None:
    recall = AIMessage(
        "", tool_calls=[{"name": "recall", "args": {"query": "crate of depot 0"}, "id": "r", "type": "tool_call"}]
    )
    model = Scripted(script=[*(calls(n) for n in range(12)), recall, AIMessage(DONE)], seen=[])
    state = run(agent_of(palimpsest, model, recall=True), sid, "Look at all depots.")
    found = next(message for message in state if isinstance(message, ToolMessage) and message.tool_call_id == "r")
    assert "Item 0-" in str(found.content)
    assert str(state[-1].content).strip() == DONE


def test_only_a_middleware_with_recall_changes_the_graph(palimpsest: Gate) -> None:
    def nodes(*middleware: Any) -> set[str]:
        return set(create_agent(Scripted(script=[], seen=[]), middleware=middleware).get_graph().nodes)

    plain = PalimpsestMiddleware(client=palimpsest.client())
    recalling = PalimpsestMiddleware(client=palimpsest.client(), recall=True)
    assert nodes(plain) == nodes()
    assert nodes(recalling) == nodes() | {"tools"}
    assert isinstance(recalling, PalimpsestMiddleware)
    assert plain.name == recalling.name


def test_a_subclass_that_cannot_answer_the_recall_tool_is_refused_it(palimpsest: Gate) -> None:
    class Own(PalimpsestMiddleware):
        """A program's own middleware."""

    class OwnRecall(PalimpsestRecallMiddleware):
        """A middleware that handles the recall tool."""

    assert not Own(client=palimpsest.client()).tools
    assert OwnRecall(client=palimpsest.client(), recall=True).tools
    with pytest.raises(TypeError, match="PalimpsestRecallMiddleware"):
        Own(client=palimpsest.client(), recall=True)


def test_an_agent_without_a_thread_gets_an_error(palimpsest: Gate) -> None:
    model = Scripted(script=[AIMessage(DONE)], seen=[])
    agent = create_agent(model, [depot], middleware=[PalimpsestMiddleware(client=palimpsest.client())])
    with pytest.raises(ValueError, match="thread_id"):
        agent.invoke(user_input("Hello."))


def test_thinking_and_images_go_with_what_they_belong_to(palimpsest: Gate, sid: str) -> None:
    thought = AIMessage(
        [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "depot", "input": {"number": 1}},
        ],
        tool_calls=[{"name": "depot", "args": {"number": 1}, "id": "call_1", "type": "tool_call"}],
    )
    model = Scripted(script=[thought, AIMessage(DONE)], seen=[])
    image = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
    agent = agent_of(palimpsest, model, max_tokens=60_000)
    agent.invoke({"messages": [HumanMessage([{"type": "text", "text": "This?"}, image])]}, in_thread(sid))
    assert model.seen[-1][1].content[1] == image
    assert model.seen[-1][2].content == thought.content
    events = palimpsest.events(sid)
    assert [event.type for event in events[2:6]] == ["user.message", "assistant.message", "tool.call", "tool.result"]
    assert events[2].content[1]["type"] == "image_url"
