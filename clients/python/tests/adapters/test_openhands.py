"""OpenHands' own agent and conversation, with a stand-in of OpenAI's API on loopback."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

import pytest

os.environ |= {
    "OH_PERSISTENCE_DIR": mkdtemp(prefix="palimpsest-openhands-"),  # read by the import
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the import would request it from another host
}

from openhands.sdk import LLM, Agent, Conversation, LocalConversation, ThinkingBlock
from openhands.sdk.context.condenser import CondenserBase, LLMSummarizingCondenser, PipelineCondenser
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.event import ActionEvent, Condensation, Event, MessageEvent
from openhands.sdk.tool import Action, Observation, Tool, ToolDefinition, ToolExecutor, register_tool
from pydantic import ValidationError

from palimpsest.openhands import ContextTooLong, PalimpsestCondenser, _replaced
from tests.adapters.support import (
    POLICY,
    ROOM,
    TOO_LONG,
    TROUBLES,
    Gate,
    Json,
    chat_provider,
    expected_warnings,
    report,
    size,
    warnings_of,
)

ROUNDS = 30
PROMPT = "You look after depots."
MALFORMED = {"error": {"message": "'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."}}
OVERFLOW = {"error": {"message": TOO_LONG, "type": "invalid_request_error", "code": "context_length_exceeded"}}


class DepotAction(Action):
    """A call of the tool."""

    number: int
    remark: str = ""


class DepotObservation(Observation):
    """A result of the tool."""


class Look(ToolExecutor[DepotAction, DepotObservation]):
    """The tool's function."""

    def __call__(self, action: DepotAction, conversation: Any = None) -> DepotObservation:
        return DepotObservation.from_text(report(action.number))


class DepotTool(ToolDefinition[DepotAction, DepotObservation]):
    """A tool that returns a report about a depot."""

    name = "depot"

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Sequence[Self]:
        described: Any = {"description": "Look at a depot.", "executor": Look()}
        return [cls(action_type=DepotAction, observation_type=DepotObservation, **described)]


register_tool("depot", DepotTool)


@dataclass
class Model:
    """A model that looks at `each` depots a round, then returns their number, and records its inputs."""

    url: str = ""
    rounds: int = ROUNDS
    each: int = 1
    remark: str = ""
    overflows: int = 0
    refusal: Json = field(default_factory=lambda: OVERFLOW)
    bodies: list[Json] = field(default_factory=list)
    done: int = 0

    @property
    def sent(self) -> list[list[Json]]:
        return [body["messages"] for body in self.bodies]

    def answer(self, body: Json) -> Json:
        if "tools" not in body:  # OpenHands' own condenser
            return {"role": "assistant", "content": "There were depots."}
        check(body["messages"])
        self.bodies.append(body)
        if self.overflows:
            self.overflows -= 1
            return self.refusal
        if self.done >= self.rounds * self.each:
            return {"role": "assistant", "content": f"I looked at {self.done}."}
        numbers = range(self.done + 1, self.done + self.each + 1)
        self.done += self.each
        return {
            "role": "assistant",
            "content": f"I look at {numbers[0]}.",
            "tool_calls": [self._call(number) for number in numbers],
        }

    def _call(self, number: int) -> Json:
        function = {"name": "depot", "arguments": json.dumps({"number": number, "remark": self.remark})}
        return {"id": f"call-{number}", "type": "function", "function": function}


def check(messages: Sequence[Json]) -> None:
    """Assert that each call is followed by its result, and each result preceded by its call, as providers require."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, f"no results of {waiting}"
            waiting = {call["id"] for call in message.get("tool_calls") or ()}
    assert not waiting


@pytest.fixture
def model() -> Iterator[Model]:
    state = Model()
    with chat_provider(state.answer) as state.url:
        yield state


@pytest.fixture(scope="module", autouse=True)
def home() -> Iterator[None]:
    yield
    shutil.rmtree(os.environ["OH_PERSISTENCE_DIR"])


@pytest.fixture(autouse=True)
def capture_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "palimpsest")


def condenser_of(palimpsest: Gate, **more: Any) -> PalimpsestCondenser:
    given = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    return PalimpsestCondenser(**{**given, **more})


def converse(model: Model, condenser: CondenserBase, folder: Path, **more: Any) -> LocalConversation:
    llm = LLM(model="openai/gpt-4o", base_url=model.url, api_key="none", usage_id="agent", num_retries=0)
    one = Agent(llm=llm, tools=[Tool(name="depot")], system_prompt=PROMPT, condenser=condenser)
    return converse_with(one, folder, **more)


def converse_with(one: Agent, folder: Path, **more: Any) -> LocalConversation:
    return Conversation(agent=one, workspace=str(folder), visualizer=None, max_iteration_per_run=200, **more)


def ask(conversation: LocalConversation, text: str) -> str:
    conversation.send_message(text)
    conversation.run()
    return said(conversation.state.events[-1])


def said(event: Event) -> str:
    assert isinstance(event, MessageEvent), event
    return text_of(event.to_llm_message().content)


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(getattr(part, "text", None) or part["text"] for part in content or ())


def errors_of(palimpsest: Gate) -> list[str]:
    return [outcome["error"]["code"] for outcome in palimpsest.outcomes if outcome.get("error")]


def texts(messages: Sequence[Json]) -> list[str]:
    return [text_of(message.get("content")) for message in messages]


def test_every_call_of_a_long_run_fits_and_is_reported(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    condenser = condenser_of(palimpsest)
    one = converse(model, condenser, tmp_path)
    assert ask(one, "Look at all depots.") == f"I looked at {ROUNDS}."
    assert len(model.sent) == ROUNDS + 1
    assert all(size(body["messages"]) + size(body["tools"]) < ROOM for body in model.bodies)
    own = [text_of(event.to_llm_message().content) for event in one.state.view.events]
    assert sum(map(len, own)) // 4 > 4 * ROOM
    assert report(1) in own and report(ROUNDS) in own
    assert report(1) not in texts(model.sent[-1]) and report(ROUNDS) in texts(model.sent[-1])
    assert not [event for event in one.state.events if isinstance(event, Condensation)]

    sid = str(one.id)
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    assert len(palimpsest.contexts) == len(model.sent)
    counts = [outcome["usage"] for outcome in palimpsest.outcomes]
    assert counts == [{"input_tokens": size(sent), "output_tokens": 7} for sent in model.sent[:-1]]
    assert condenser.log(one)
    assert palimpsest.outcomes[ROUNDS]["usage"]["input_tokens"] == size(model.sent[-1])
    events = palimpsest.events(sid)
    assert [event.type for event in events].count("tool.result") == ROUNDS
    assert [event.type for event in events].count("tool.call") == ROUNDS
    assert events[-1].type == "assistant.message"
    model.rounds = 0
    ask(one, "Once more?")
    assert len(palimpsest.events(sid)) == len(events) + 1  # nothing twice; the answer comes with the next call
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    assert palimpsest.contexts[0][0]["tools"] == model.bodies[0]["tools"]


async def test_parallel_calls_and_their_long_arguments_fit(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    model.each, model.rounds, model.remark = 3, 8, "Weigh each crate and seal it. " * 60
    one = converse(model, condenser_of(palimpsest, max_tokens=2 * ROOM), tmp_path)
    one.send_message("Look at all depots.")
    await one.arun()
    assert said(one.state.events[-1]) == "I looked at 24."
    assert all(size(body["messages"]) + size(body["tools"]) < 2 * ROOM for body in model.bodies)
    calls = [message["tool_calls"] for message in model.sent[-1] if message.get("tool_calls")]
    assert all(len(together) == model.each for together in calls)
    arguments = [json.loads(call["function"]["arguments"]) for together in calls for call in together]
    assert arguments[-1] == {"number": 24, "remark": model.remark}
    assert any(len(one["remark"]) < len(model.remark) and one["number"] for one in arguments)
    asked = [message for message in palimpsest.contexts[-1][0]["messages"] if message.get("tool_calls")]
    assert [len(message["tool_calls"]) for message in asked] == [model.each] * model.rounds
    events = palimpsest.events(str(one.id))
    assert [event.type for event in events].count("tool.result") == 24
    assert len(palimpsest.outcomes) == len(model.sent) - 1
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{one.id}@line.1"}


def test_events_of_the_view_are_the_same_objects_or_changed_copies(
    palimpsest: Gate, model: Model, tmp_path: Path, sid: str
) -> None:
    one = converse(model, condenser_of(palimpsest, session=sid), tmp_path)
    ask(one, "Look at all depots.")
    before = list(one.state.view.events)
    shown = one.agent.condenser.condense(one.state.view, one.agent.llm)
    assert one.state.view.events == before
    kept = [event for event in shown.events if any(event is own for own in before)]
    assert shown.events[-1] is before[-1] and shown.events[0] is before[0]
    assert 2 < len(kept) < len(before)
    assert palimpsest.contexts[-1][1]["session"] == sid


def test_the_thought_of_an_answer_moves_to_the_first_call_that_is_left(
    palimpsest: Gate, model: Model, tmp_path: Path
) -> None:
    model.each, model.rounds = 3, 1
    one = converse(model, condenser_of(palimpsest), tmp_path)
    ask(one, "Look at three.")
    actions = tuple(event for event in one.state.view.events if isinstance(event, ActionEvent))
    said = ThinkingBlock(thinking="Hm.", signature="signed")
    piece = (actions[0].model_copy(update={"thinking_blocks": [said]}), *actions[1:])
    kept, gone = {"action": "keep"}, {"action": "drop"}
    calls = [{"call_id": event.tool_call_id} for event in piece]
    second, third = _replaced(piece, {"action": "replace", "parts": [kept, gone | calls[0], kept | calls[1]]}) or ()
    assert third is actions[2]
    message = second.to_llm_message()
    assert [call.id for call in message.tool_calls or ()] == ["call-2"]
    assert text_of(message.content) == "I look at 1." and list(message.thinking_blocks) == [said]
    shorter = {
        "action": "replace",
        "parts": [{"action": "replace", "text": "I look."}, *(gone | call for call in calls)],
    }
    (left,) = _replaced(piece, shorter) or ()
    assert (left.to_llm_message().tool_calls, text_of(left.to_llm_message().content)) == (None, "I look.")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_call_that_was_too_long_is_retried_once_with_less(
    palimpsest: Gate, model: Model, tmp_path: Path, asynchronous: bool
) -> None:
    async def run(text: str) -> str:
        one.send_message(text)
        await one.arun() if asynchronous else one.run()
        return said(one.state.events[-1])

    model.rounds = 12
    one = converse(model, condenser_of(palimpsest, max_tokens=20_000), tmp_path)
    await run("Look at all depots.")
    calls, model.overflows = len(model.sent), 1
    assert await run("And now?") == "I looked at 12."
    assert len(model.sent) == calls + 2
    assert size(model.sent[-1]) < size(model.sent[-2])
    assert errors_of(palimpsest) == ["context_length_exceeded"]
    assert sum(isinstance(event, Condensation) for event in one.state.events) == 1
    model.overflows = 2
    with pytest.raises(ConversationRunError) as raised:
        await run("And now?")
    assert isinstance(raised.value.original_exception, ContextTooLong)
    assert len(errors_of(palimpsest)) == 3
    assert await run("And then?") == "I looked at 12."


def test_a_history_that_the_provider_calls_malformed_is_retried_once(
    palimpsest: Gate, model: Model, tmp_path: Path
) -> None:
    model.rounds, model.overflows, model.refusal = 4, 1, MALFORMED
    one = converse(model, condenser_of(palimpsest), tmp_path)
    assert ask(one, "Look at four.") == "I looked at 4."
    assert len(errors_of(palimpsest)) == 1
    model.overflows = 3
    with pytest.raises(ConversationRunError) as raised:
        ask(one, "And now?")
    assert isinstance(raised.value.original_exception, ContextTooLong)
    assert model.overflows == 1


def test_a_condensation_that_the_user_requests_changes_nothing(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    model.rounds = 2
    one = converse(model, condenser_of(palimpsest), tmp_path)
    ask(one, "Look at two.")
    before, calls = list(one.state.view.events), len(model.sent)
    one.condense()
    assert list(one.state.view.events) == before and len(model.sent) == calls
    assert ask(one, "And now?") == "I looked at 2."
    assert not errors_of(palimpsest)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_continues_without_the_server_and_catches_up(
    palimpsest: Gate, model: Model, tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    model.rounds = 4
    condenser = condenser_of(palimpsest)
    one = converse(model, condenser, tmp_path)
    sid = str(one.id)
    assert ask(one, "Look at four.") == "I looked at 4."
    assert condenser.passed_through == {sid: len(model.sent) - (trouble == "midway")}
    assert report(1) in texts(model.sent[-1])
    palimpsest.mode, model.rounds = "open", 8
    assert ask(one, "Four more.") == "I looked at 8."
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == 8


def test_an_overflow_without_the_server_ends_the_run(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    palimpsest.mode, model.overflows = "failing", 1
    one = converse(model, condenser_of(palimpsest), tmp_path)
    with pytest.raises(ConversationRunError) as raised:
        ask(one, "Look at all depots.")
    assert isinstance(raised.value.original_exception, ContextTooLong)


def test_an_observed_conversation_is_sent_whole(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    model.rounds = 10
    one = converse(model, condenser_of(palimpsest, observe=True), tmp_path)
    assert ask(one, "Look at ten depots.") == "I looked at 10."
    assert size(model.sent[-1]) > ROOM
    assert all(report(number) in texts(model.sent[-1]) for number in range(1, 11))
    assert any(step["action"] != "keep" for step in palimpsest.contexts[-1][1]["plan"])
    calls = list(palimpsest.client().session(str(one.id)).list_calls())
    assert {call.view for call in calls} == {"~observed"} and len(calls) == len(model.sent)


def test_an_observing_condenser_leaves_overflows_to_the_next(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    model.rounds = 10
    one = converse(model, condenser_of(palimpsest, observe=True), tmp_path)
    ask(one, "Look at ten depots.")
    model.overflows = 1
    with pytest.raises(ConversationRunError) as raised:
        ask(one, "And now?")
    assert not isinstance(raised.value.original_exception, ContextTooLong)

    model.done, model.bodies = 0, []
    summarizing = LLMSummarizingCondenser(llm=one.agent.llm.model_copy(update={"usage_id": "condenser"}), keep_first=2)
    both = PipelineCondenser(condensers=[condenser_of(palimpsest, observe=True), summarizing])
    two = converse(model, both, tmp_path)
    ask(two, "Look at ten depots.")
    calls, model.overflows = len(model.sent), 1
    assert ask(two, "And now?") == "I looked at 10."
    assert len(model.sent) == calls + 2
    assert "There were depots." in "".join(texts(model.sent[-1]))
    assert errors_of(palimpsest) == ["context_length_exceeded"]


def test_an_earlier_answer_is_not_reported_for_a_later_call(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    model.rounds = 6
    one = converse(model, condenser_of(palimpsest), tmp_path)
    ask(one, "Look at six.")
    reported, earlier = len(palimpsest.outcomes), one.state.view.events[3]
    one.navigate_to(earlier.id)
    ask(one, "Go on.")
    assert len(palimpsest.outcomes) == reported
    one.navigate_to(earlier.id)
    one.condense()
    assert not errors_of(palimpsest)
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{one.id}@line.{n}" for n in (1, 2)}


def test_restored_and_forked_conversations_continue(
    palimpsest: Gate, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_URL", palimpsest.url)
    model.rounds = 4
    condenser = condenser_of(palimpsest)
    stored = {"persistence_dir": str(tmp_path / "stored")}
    one = converse(model, condenser, tmp_path, **stored)
    sid = str(one.id)
    ask(one, "Look at four.")
    one.close()
    restored = PalimpsestCondenser.model_validate_json(condenser.model_dump_json())
    assert restored.max_tokens == ROOM and restored.policy == POLICY
    again = converse(model, restored, tmp_path, **stored, conversation_id=one.id)
    model.rounds = 8
    assert ask(again, "Four more.") == "I looked at 8."
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    fork = again.fork()
    assert ask(fork, "And now?") == "I looked at 8."
    assert palimpsest.contexts[-1][1]["session"] == str(fork.id)
    assert [event.type for event in palimpsest.events(str(fork.id))].count("tool.result") == 8


def test_two_conversations_of_one_agent_have_sessions_of_their_own(
    palimpsest: Gate, model: Model, tmp_path: Path
) -> None:
    condenser, model.rounds = condenser_of(palimpsest), 2
    one = converse(model, condenser, tmp_path)
    other = converse_with(one.agent, tmp_path)
    ask(one, "Look at two.")
    model.done = 0
    ask(other, "Look at two, and be quick.")
    assert {answer["session"] for _, answer in palimpsest.contexts} == {str(one.id), str(other.id)}
    condenser.log(one)
    assert palimpsest.outcomes[-2]["usage"]["input_tokens"] == size(model.sent[2])


def test_settings_that_do_not_work_are_errors(palimpsest: Gate, model: Model, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="recall"):
        condenser_of(palimpsest, recall=True)
    with pytest.raises(ConversationRunError, match="max_tokens"):
        ask(converse(model, condenser_of(palimpsest, max_tokens=-1, policy=None), tmp_path), "Hello.")
    with pytest.raises(ValueError, match="no session"):
        one = converse(model, condenser_of(palimpsest), tmp_path)
        one.agent.condenser.condense(one.state.view)
