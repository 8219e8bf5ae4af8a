"""The Pydantic AI capability in agents, with functions as models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

from palimpsest.pydantic_ai import PalimpsestCapability
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

DONE = "All depots are in order."


def calls(*numbers: int, text: str = "") -> list[Any]:
    """Return the parts of a response that calls for depots."""
    said: list[Any] = [TextPart(text)] if text else []
    return [*said, *(ToolCallPart("depot", {"number": n}, f"call_{n}") for n in numbers)]


def overflow() -> Exception:
    """Return the error of a provider whose window was exceeded."""
    return ModelHTTPError(400, "gpt-4o", {"error": {"message": TOO_LONG, "code": "context_length_exceeded"}})


def text_of(messages: list[ModelMessage]) -> str:
    """Return the text of a model's input."""
    return "".join(str(getattr(part, "content", part)) for message in messages for part in message.parts)


class Script:
    """Responses in order; an exception among them is raised. It records its inputs."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.seen, self.instructions = list(answers), list[list[ModelMessage]](), list[str | None]()

    def model(self) -> FunctionModel:
        """Return the model of the script, whole and streamed."""
        return FunctionModel(self._whole, stream_function=self._streamed, model_name="gpt-4o")

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> list[Any]:
        said = self.answers[min(len(self.seen), len(self.answers) - 1)]
        self.seen.append(list(messages))
        self.instructions.append(info.instructions)
        if isinstance(said, Exception):
            raise said
        return [TextPart(said)] if isinstance(said, str) else said

    def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        counted = RequestUsage(input_tokens=size(text_of(messages)), output_tokens=7)
        if self.seen:  # the first response names no cache reads
            counted.cache_read_tokens = 3
        return ModelResponse(self._next(messages, info), usage=counted)

    async def _streamed(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for at, part in enumerate(self._next(messages, info)):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield word + " "
            else:
                yield {at: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def agent_of(palimpsest: Gate, script: Script, **settings: Any) -> Agent[None, str]:
    """Return an agent with a window that is too small for the whole conversation."""
    given = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    given |= settings
    agent = Agent(script.model(), instructions="You look after depots.", capabilities=[PalimpsestCapability(**given)])

    @agent.tool_plain
    def depot(number: int) -> str:
        """All that is known of a depot."""
        return report(number)

    return agent


def run_async(agent: Agent[None, str], sid: str, said: Any, history: Any = None) -> Any:
    """Run with `run`."""
    return asyncio.run(agent.run(said, conversation_id=sid, message_history=history))


def run_blocking(agent: Agent[None, str], sid: str, said: Any, history: Any = None) -> Any:
    """Run with `run_sync`."""
    return agent.run_sync(said, conversation_id=sid, message_history=history)


def run_streamed(agent: Agent[None, str], sid: str, said: Any, history: Any = None) -> Any:
    """Run with streamed model requests."""
    count = 0

    async def watch(_: Any, events: Any) -> None:
        nonlocal count
        async for _event in events:
            count += 1

    result = asyncio.run(agent.run(said, conversation_id=sid, message_history=history, event_stream_handler=watch))
    assert count > 1
    return result


RUNS = pytest.mark.parametrize("run", [run_async, run_blocking, run_streamed])
Run = Any


@RUNS
def test_twenty_rounds_in_a_quarter_of_their_window(palimpsest: Gate, sid: str, run: Run) -> None:
    script = Script(*(calls(n) for n in range(ROUNDS)), DONE)
    result = run(agent_of(palimpsest, script), sid, "Look at all depots.")
    assert result.output.strip() == DONE
    assert len(result.all_messages()) == 2 * ROUNDS + 2, "the history keeps everything"
    assert size(text_of(result.all_messages())) > 3 * ROOM
    assert all(size(text_of(sent)) < ROOM for sent in script.seen)
    assert set(script.instructions) == {"You look after depots."}
    assert len(palimpsest.contexts) == ROUNDS + 1
    assert palimpsest.contexts[-1][1]["evictions"]
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    assert len(palimpsest.outcomes) == ROUNDS + 1
    if run is not run_streamed:  # a function model counts the usage of a stream itself
        assert set(palimpsest.outcomes[0]["usage"]) == {"input_tokens", "output_tokens"}
        assert palimpsest.outcomes[-1]["usage"]["cache_read_tokens"] == 3
        assert {outcome["usage"]["output_tokens"] for outcome in palimpsest.outcomes} == {7}
    events = palimpsest.events(sid)
    assert sorted(event.type for event in events[:2]) == ["system.prompt", "tools"]
    kinds = ["user.message", *["tool.call", "tool.result"] * ROUNDS, "assistant.message"]
    assert [event.type for event in events[2:]] == kinds


def test_kept_messages_are_the_same_objects_as_in_the_history(palimpsest: Gate, sid: str) -> None:
    handed: list[tuple[list[ModelMessage], list[ModelMessage]]] = []

    class Watching(PalimpsestCapability):
        async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
            fitted = await super().prepare_model_request(ctx, request_context)
            handed.append((list(request_context.messages), list(fitted.messages)))
            return fitted

    script = Script(*(calls(n, n + 100) for n in range(8)), DONE)
    watching = Watching(client=palimpsest.client(), max_tokens=ROOM, policy=POLICY)
    agent = Agent(script.model(), capabilities=[watching])

    @agent.tool_plain
    def depot(number: int) -> str:
        return report(number)

    agent.run_sync("Look at all depots.", conversation_id=sid)
    own, fitted = handed[-1]
    ids = {id(message) for message in own}
    assert sum(1 for message in fitted if id(message) in ids) >= 3
    assert fitted[-1] is own[-1]
    assert any(id(message) not in ids for message in fitted) or len(fitted) < len(own)
    asked = {part.tool_call_id for message in fitted for part in message.parts if isinstance(part, ToolCallPart)}
    given = {part.tool_call_id for message in fitted for part in message.parts if isinstance(part, ToolReturnPart)}
    assert asked == given


@RUNS
def test_parallel_calls_and_a_conversation_that_goes_on(palimpsest: Gate, sid: str, run: Run) -> None:
    script = Script(calls(1, 2, text="I look."), "Both are fine.", "You are welcome.")
    agent = agent_of(palimpsest, script, max_tokens=60_000)
    first = run(agent, sid, "Depots 1 and 2?")
    assert run(agent, sid, "Thank you.", first.all_messages()).output.strip() == "You are welcome."
    kinds = ["user.message", "assistant.message", "tool.call", "tool.call", "tool.result", "tool.result"]
    kinds += ["assistant.message", "user.message", "assistant.message"]
    assert [event.type for event in palimpsest.events(sid)][2:] == kinds
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}


@RUNS
def test_a_request_that_was_too_long_is_retried_with_less(palimpsest: Gate, sid: str, run: Run) -> None:
    script = Script(*(calls(n) for n in range(8)), overflow(), DONE)
    assert run(agent_of(palimpsest, script, max_tokens=20_000), sid, "Look at all depots.").output.strip() == DONE
    assert [bool(outcome.get("error")) for outcome in palimpsest.outcomes] == [False] * 8 + [True, False]
    assert size(text_of(script.seen[-1])) < size(text_of(script.seen[-2]))


@RUNS
def test_an_overflow_that_stays_is_the_programs(palimpsest: Gate, sid: str, run: Run) -> None:
    script = Script(calls(1), calls(2), overflow())
    with pytest.raises(ModelHTTPError):
        run(agent_of(palimpsest, script), sid, "Look at all depots.")
    assert len(script.seen) == 4


@RUNS
def test_an_error_is_reported_and_raised(palimpsest: Gate, sid: str, run: Run) -> None:
    script = Script(RuntimeError("overloaded"))
    with pytest.raises(RuntimeError, match="overloaded"):
        run(agent_of(palimpsest, script), sid, "Hello.")
    assert palimpsest.outcomes[-1]["error"]["message"] == "overloaded"
    assert len(script.seen) == 1


@RUNS
def test_the_server_away_and_back(palimpsest: Gate, sid: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    script = Script(calls(1), calls(2), "One.", calls(3), "Two.")
    agent = agent_of(palimpsest, script)
    palimpsest.mode = "failing"
    first = run(agent, sid, "Depots?")
    assert first.output.strip() == "One."
    assert len(script.seen[-1]) == 5, "all of it, as it is"
    assert len([record for record in caplog.records if "unreachable" in record.message]) == 1
    palimpsest.mode = "open"
    assert run(agent, sid, "And depot 3?", first.all_messages()).output.strip() == "Two."
    assert len([record for record in caplog.records if "is back at" in record.message]) == 1
    assert len([event for event in palimpsest.events(sid) if event.type == "tool.result"]) == 3


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_continues_whatever_the_server_does(
    palimpsest: Gate, sid: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    script = Script(calls(1), calls(2), "One.", calls(3), "Two.")
    memory = PalimpsestCapability(client=palimpsest.client(), timeout=palimpsest.timeout)
    agent = Agent(script.model(), capabilities=[memory])
    agent.tool_plain(name="depot")(report)
    first = run_async(agent, sid, "Depots?")
    assert first.output == "One."
    assert memory.passed_through == {sid: 2 if trouble == "midway" else 3}
    palimpsest.mode = "open"
    assert run_async(agent, sid, "And depot 3?", first.all_messages()).output == "Two."
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert len([event for event in palimpsest.events(sid) if event.type == "tool.result"]) == 3


def test_runs_of_one_agent_at_once(palimpsest: Gate, sid: str) -> None:
    scripts = [Script(*(calls(n) for n in range(6)), f"Done {at}.") for at in range(3)]
    agent = agent_of(palimpsest, scripts[0])

    async def both() -> list[str]:
        runs = (
            agent.run("Look.", conversation_id=f"{sid}-{at}", model=script.model()) for at, script in enumerate(scripts)
        )
        return [result.output for result in await asyncio.gather(*runs)]

    assert asyncio.run(both()) == ["Done 0.", "Done 1.", "Done 2."]
    for at in range(3):
        assert palimpsest.events(f"{sid}-{at}")[-1].content[0]["text"] == f"Done {at}."
    reported = [path for method, path, _, _ in palimpsest.seen if method == "POST" and path.endswith("/outcome")]
    assert len(set(reported)) == len(reported) == 21


def test_the_recall_tool_returns_evicted_content(palimpsest: Gate, sid: str) -> None:
    recall = [ToolCallPart("recall", {"query": "crate of depot 0"}, "r")]
    script = Script(*(calls(n) for n in range(12)), recall, DONE)
    result = run_async(agent_of(palimpsest, script, recall=True), sid, "Look at all depots.")
    parts = [part for message in result.all_messages() for part in message.parts]
    found = next(part for part in parts if isinstance(part, ToolReturnPart) and part.tool_call_id == "r")
    assert "Item 0-" in str(found.content)
    assert result.output == DONE


def test_thinking_images_and_prompts_in_the_history(palimpsest: Gate, sid: str) -> None:
    image = BinaryContent(b"\x89PNG\r\n\x1a\n", media_type="image/png")
    history = [
        ModelRequest([SystemPromptPart("Be brief."), UserPromptPart(["This?", image])]),
        ModelResponse([ThinkingPart("Hm."), *calls(1, text="I look.")]),
        ModelRequest([ToolReturnPart("depot", "It is full.", "call_1")]),
        ModelResponse([ThinkingPart("Hm again."), TextPart("Full.")]),
    ]
    script = Script(DONE)
    run_async(agent_of(palimpsest, script, max_tokens=60_000), sid, "And now?", history)
    assert script.seen[0][:4] == history
    events = palimpsest.events(sid)
    assert [event.type for event in events if event.type not in ("tools", "system.prompt")][:2] == [
        "user.message",
        "assistant.message",
    ]
    assert "image_url" in str(events)
