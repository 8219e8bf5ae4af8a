"""The OpenAI Agents SDK's runner with our session and filter, and its own scripted model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCreatedEvent, ResponseFailedEvent

from palimpsest import ConnectionFailed, ServerError
from palimpsest.openai_agents import PalimpsestSession
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
set_tracing_disabled(True)


@function_tool
def depot(number: int) -> str:
    """All that is known of a depot."""
    return report(number)


def response_step(*output: Any) -> ModelStep:
    """Return a response with these items, and the provider's usage."""

    def respond(call: Any) -> ModelStep:
        tokens = size(call.input)
        counted = Usage(requests=1, input_tokens=tokens, output_tokens=7, total_tokens=tokens + 7)
        if len(call.input) > 1:  # for the first call, the SDK has a 0 that no provider named
            counted.input_tokens_details.cached_tokens = 3
        return ModelStep(output=output, usage=counted)

    return ModelStep.respond(respond)


def calls(*numbers: int) -> ModelStep:
    """Return a response that calls for depots."""
    return response_step(
        *(function_call("depot", {"number": n}, call_id=f"call_{n}", item_id=f"fc_{n}") for n in numbers)
    )


def text_step(text: str, number: int = 0) -> ModelStep:
    """Return a response of text only."""
    return response_step(assistant_message(text, item_id=f"msg_{number}"))


def overflow() -> Exception:
    """Return the error of a provider whose window was exceeded."""
    error = ValueError(TOO_LONG)
    error.status_code, error.code = 400, "context_length_exceeded"  # type: ignore[attr-defined]
    return error


def session_of(palimpsest: Gate, sid: str, **settings: Any) -> PalimpsestSession:
    """Return a session with a window that is too small for the whole conversation."""
    given = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    given |= {"model": "gpt-4o", **settings}
    return PalimpsestSession(sid, **given)


async def run_whole(memory: PalimpsestSession, model: Any, said: str, **more: Any) -> str:
    """Run with `Runner.run`."""
    agent = Agent("clerk", instructions="You look after depots.", tools=[depot, *more.pop("tools", ())])
    config = memory.run_config(model=model)
    return str((await Runner.run(agent, said, session=memory, run_config=config, max_turns=99)).final_output)


async def run_streamed(memory: PalimpsestSession, model: Any, said: str, **more: Any) -> str:
    """Run with `Runner.run_streamed`."""
    agent = Agent("clerk", instructions="You look after depots.", tools=[depot, *more.pop("tools", ())])
    result = Runner.run_streamed(agent, said, session=memory, run_config=memory.run_config(model=model), max_turns=99)
    assert len([one async for one in result.stream_events()]) > 1
    return str(result.final_output)


RUNS = pytest.mark.parametrize("run", [run_whole, run_streamed])
Run = Any


@RUNS
async def test_twenty_rounds_in_a_quarter_of_their_window(palimpsest: Gate, sid: str, run: Run) -> None:
    memory = session_of(palimpsest, sid)
    model = ScriptedModel([*(calls(n) for n in range(ROUNDS)), text_step(DONE)])
    assert await run(memory, model, "Look at all depots.") == DONE
    items = await memory.get_items()
    assert len(items) == 2 * ROUNDS + 2
    assert size(items) > 3 * ROOM
    assert all(size(call.input) < ROOM for call in model.calls)
    assert all(call.system_instructions == "You look after depots." for call in model.calls)
    assert len(palimpsest.contexts) == ROUNDS + 1
    assert palimpsest.contexts[-1][1]["evictions"]
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    counted = [{"input_tokens": size(call.input), "cache_read_tokens": 3, "output_tokens": 7} for call in model.calls]
    del counted[0]["cache_read_tokens"]
    assert [outcome["usage"] for outcome in palimpsest.outcomes] == counted
    kinds = [event.type for event in palimpsest.events(sid) if event.type not in ("system.prompt", "tools")]
    assert kinds == ["user.message", *["tool.call", "tool.result"] * ROUNDS, "assistant.message"]


async def test_kept_items_are_the_same_objects(palimpsest: Gate, sid: str) -> None:
    handed: list[tuple[list[Any], list[Any]]] = []
    memory = session_of(palimpsest, sid)
    agent = Agent("clerk", tools=[depot])

    async def watched(data: Any) -> Any:
        own = data.model_data.input
        fitted = await memory.filter(data)
        handed.append((own, fitted.input))
        return fitted

    model = ScriptedModel([*(calls(n, n + 100) for n in range(8)), text_step(DONE)])
    await Runner.run(agent, "Look.", run_config=RunConfig(model=model, call_model_input_filter=watched), max_turns=99)
    own, fitted = handed[-1]
    ids = {id(item) for item in own}
    assert sum(1 for item in fitted if id(item) in ids) >= 4
    assert fitted[-1] is own[-1]
    assert any(id(item) not in ids for item in fitted) or len(fitted) < len(own)
    asked = {item["call_id"] for item in fitted if item.get("type") == "function_call"}
    assert asked == {item["call_id"] for item in fitted if item.get("type") == "function_call_output"}


@RUNS
async def test_parallel_calls_and_a_conversation_that_goes_on_elsewhere(palimpsest: Gate, sid: str, run: Run) -> None:
    model = ScriptedModel([calls(1, 2), text_step("Both are fine.", 1), text_step("You are welcome.", 2)])
    await run(session_of(palimpsest, sid, max_tokens=60_000), model, "Depots 1 and 2?")
    memory = session_of(palimpsest, sid, max_tokens=60_000)  # another process
    assert await run(memory, model, "Thank you.") == "You are welcome."
    kinds = ["user.message", "tool.call", "tool.call", "tool.result", "tool.result"]
    kinds += ["assistant.message", "user.message", "assistant.message"]
    assert [event.type for event in palimpsest.events(sid)][2:] == kinds or [
        event.type for event in palimpsest.events(sid) if event.type not in ("system.prompt", "tools")
    ] == kinds
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    assert len(model.calls[-1].input) == 7


@RUNS
async def test_an_observed_run_sends_all_items(palimpsest: Gate, sid: str, run: Run) -> None:
    memory = session_of(palimpsest, sid, observe=True)
    model = ScriptedModel([*(calls(n) for n in range(ROUNDS)), text_step(DONE)])
    assert await run(memory, model, "Look at all depots.") == DONE
    assert [len(call.input) for call in model.calls] == [2 * n + 1 for n in range(ROUNDS + 1)]
    assert {answer["view"] for _, answer in palimpsest.contexts} == {"~observed"}
    assert not any("error" in outcome for outcome in palimpsest.outcomes)


@RUNS
async def test_a_request_that_was_too_long_is_retried_with_less(palimpsest: Gate, sid: str, run: Run) -> None:
    model = ScriptedModel([*(calls(n) for n in range(8)), overflow(), text_step(DONE)])
    assert await run(session_of(palimpsest, sid, max_tokens=20_000), model, "Look at all depots.") == DONE
    assert [bool(outcome.get("error")) for outcome in palimpsest.outcomes] == [False] * 8 + [True, False]
    assert size(model.calls[-1].input) < size(model.calls[-2].input)


async def test_an_overflow_that_comes_in_the_stream(palimpsest: Gate, sid: str) -> None:
    def failing(call: Any) -> Any:
        base = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
        base |= {"parallel_tool_calls": True, "tool_choice": "auto"}
        error = {"code": "invalid_prompt", "message": TOO_LONG}
        begun = {"type": "response.created", "sequence_number": 0, "response": {**base, "status": "in_progress"}}
        ended = {
            "type": "response.failed",
            "sequence_number": 1,
            "response": {**base, "status": "failed", "error": error},
        }
        return [ResponseCreatedEvent.model_validate(begun), ResponseFailedEvent.model_validate(ended)]

    model = ScriptedModel([*(calls(n) for n in range(8)), ModelStep.stream(failing(None)), text_step(DONE)])
    assert await run_streamed(session_of(palimpsest, sid, max_tokens=20_000), model, "Look at all depots.") == DONE
    assert [bool(outcome.get("error")) for outcome in palimpsest.outcomes] == [False] * 8 + [True, False]


async def test_an_overflow_after_the_answer_has_begun_gets_no_smaller_context(palimpsest: Gate, sid: str) -> None:
    class Breaking(ScriptedModel):
        async def stream_response(self, *given: Any, **more: Any) -> AsyncIterator[Any]:
            async for event in super().stream_response(*given, **more):
                yield event
                if event.type == "response.output_text.delta":
                    raise overflow()

    with pytest.raises(ValueError, match=re.escape(TOO_LONG)):
        await run_streamed(session_of(palimpsest, sid), Breaking([text_step("Good morning.")]), "Hello.")
    assert [answer["action"] for _, answer in palimpsest.posted("/outcome")] == ["retry"]
    assert len(palimpsest.contexts) == 1


@RUNS
async def test_an_error_is_reported_and_raised(palimpsest: Gate, sid: str, run: Run) -> None:
    model = ScriptedModel([RuntimeError("overloaded")])
    with pytest.raises(RuntimeError, match="overloaded"):
        await run(session_of(palimpsest, sid), model, "Hello.")
    assert palimpsest.outcomes[-1]["error"]["message"] == "overloaded"


@RUNS
async def test_the_server_away_and_back(palimpsest: Gate, sid: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    memory = session_of(palimpsest, sid)
    model = ScriptedModel(
        [text_step("Good morning.", 1), calls(1), calls(2), text_step("One.", 2), calls(3), text_step("Two.", 3)]
    )
    await run(memory, model, "Hello.")
    palimpsest.mode = "failing"
    assert await run(memory, model, "Depots?") == "One."
    assert len(model.calls[-1].input) == 7, "all of it, as it is"
    assert len([record for record in caplog.records if "unreachable" in record.message]) == 1
    palimpsest.mode = "open"
    assert await run(memory, model, "And depot 3?") == "Two."
    assert len(model.calls[-1].input) == 11
    assert len([record for record in caplog.records if "is back at" in record.message]) == 1
    kinds = [event.type for event in palimpsest.events(sid) if event.type not in ("system.prompt", "tools")]
    assert kinds.count("tool.result") == 3
    assert kinds.count("user.message") == 3
    assert len(await memory.get_items()) == 12


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_run_continues_whatever_the_server_does(
    palimpsest: Gate, sid: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    await run_whole(session_of(palimpsest, sid), ScriptedModel([text_step("Good morning.")]), "Hello.")
    palimpsest.trouble(trouble)
    memory = session_of(palimpsest, sid)  # another process, without the conversation in memory
    model = ScriptedModel([calls(1), calls(2), text_step("One.", 2), calls(3), text_step("Two.", 3)])
    assert await run_whole(memory, model, "Depots?") == "One."
    if trouble == "midway":
        assert len(model.calls[-1].input) == 7
    else:
        assert len(model.calls[-1].input) == 5, "what was said before is not at hand"
        assert "the run continues without the previous conversation" in caplog.text
    assert memory.passed_through == {sid: 2 if trouble == "midway" else 3}
    palimpsest.mode = "open"
    assert await run_whole(memory, model, "And depot 3?") == "Two."
    assert len(model.calls[-1].input) == 11, "all of it, in its order"
    assert warnings_of(caplog) == expected_warnings(trouble)
    events = [event for event in palimpsest.events(sid) if event.type not in ("system.prompt", "tools")]
    assert [event.content for event in events if event.type == "user.message"] == ["Hello.", "Depots?", "And depot 3?"]
    assert [event.type for event in events].count("tool.result") == 3
    assert {event.seq for event in palimpsest.events(f"{sid}@line.1")} >= {event.seq for event in events}


async def test_a_run_that_needs_its_history_does_not_begin_without_it(palimpsest: Gate, sid: str) -> None:
    palimpsest.mode = "failing"
    memory = session_of(palimpsest, sid, require_history=True)
    with pytest.raises((ConnectionFailed, ServerError)):
        await run_whole(memory, ScriptedModel([text_step(DONE)]), "Hello.")


PROGRAM = [
    {"role": "user", "content": "Depots?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
    {"type": "program", "id": "prog_1", "call_id": "call_p", "code": "await depot(1)", "fingerprint": "f"},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "depot",
        "arguments": "{}",
        "status": "completed",
        "caller": {"type": "program", "caller_id": "call_p"},
    },
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "fine"}]},
    {"type": "program_output", "id": "po_1", "call_id": "call_p", "result": "fine", "status": "completed"},
    {"type": "comet", "id": "new", "call_id": "call_9", "tail": {"long": True}},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "final_answer",
        "content": [{"type": "output_text", "text": "Fine.", "annotations": [], "logprobs": []}],
    },
    {"type": "custom_tool_call", "call_id": "call_2", "name": "shell", "input": "ls", "id": "ctc_1"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": "a b"},
]


async def test_items_come_back_with_every_field_that_they_had(palimpsest: Gate, sid: str) -> None:
    memory = session_of(palimpsest, sid)
    for at in range(0, len(PROGRAM), 4):
        await memory.add_items(list(PROGRAM[at : at + 4]))
    assert await memory.get_items() == PROGRAM
    assert await session_of(palimpsest, sid).get_items(limit=3) == PROGRAM[-3:]
    assert await memory.pop_item() == PROGRAM[-1]
    assert await memory.get_items() == PROGRAM[:-1]


async def test_items_that_no_append_accepts_are_kept(palimpsest: Gate, sid: str) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "depot", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "fine"}
    orphan = {"type": "function_call_output", "call_id": "lost", "output": "whose?"}
    items = [{"role": "user", "content": "Depots?"}, orphan, call, dict(call), output, dict(output), dict(output)]
    memory = session_of(palimpsest, sid)
    await memory.add_items(items[:3])
    await memory.add_items(items[3:])
    assert await memory.get_items() == items
    assert await session_of(palimpsest, sid).get_items() == items
    assert await memory.pop_item() == items[-1]
    assert await memory.get_items() == items[:-1]


async def test_items_that_the_server_refuses_are_kept_here_until_it_takes_them(
    palimpsest: Gate, sid: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = session_of(palimpsest, sid)
    said = [{"role": "user", "content": "One."}, {"role": "critic", "content": "Two."}]
    await memory.add_items([said[0]])
    await memory.add_items([said[1]])
    assert await memory.get_items() == said
    assert warnings_of(caplog) == ["refused"]


async def test_the_recall_tool_returns_evicted_content(palimpsest: Gate, sid: str) -> None:
    memory = session_of(palimpsest, sid)
    recall = ModelStep(output=[function_call("recall", {"query": "crate of depot 0"}, call_id="r")])
    model = ScriptedModel([*(calls(n) for n in range(12)), recall, text_step(DONE)])
    assert await run_whole(memory, model, "Look at all depots.", tools=[memory.recall_tool()]) == DONE
    found = next(item for item in model.calls[-1].input if item.get("call_id") == "r" and "output" in item)
    assert "Item 0-" in found["output"]


def test_a_blocking_run(palimpsest: Gate, sid: str) -> None:
    memory = session_of(palimpsest, sid)
    model = ScriptedModel([calls(1), text_step(DONE), text_step("Again.")])
    agent = Agent("clerk", tools=[depot])
    for said in ("Look.", "Once more."):
        result = Runner.run_sync(agent, said, session=memory, run_config=memory.run_config(model=model))
    assert result.final_output == "Again."
    assert len(asyncio.run(memory.get_items())) == 6


async def test_the_session_is_popped_and_cleared(palimpsest: Gate, sid: str) -> None:
    memory = session_of(palimpsest, sid)
    assert await memory.get_items() == []
    assert await memory.pop_item() is None
    said = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}]
    await memory.add_items(said)
    await memory.add_items([{"role": "user", "content": "One."}])
    assert await memory.get_items() == [*said, {"role": "user", "content": "One."}]
    assert await memory.get_items(limit=2) == [said[1], {"role": "user", "content": "One."}]
    assert await memory.pop_item() == {"role": "user", "content": "One."}
    assert await memory.get_items() == said
    await memory.add_items([{"role": "user", "content": "Three."}])
    assert (await memory.get_items())[2:] == [{"role": "user", "content": "Three."}]
    await memory.clear_session()
    assert await memory.get_items() == []
    await memory.add_items(said)
    assert await memory.get_items() == said
