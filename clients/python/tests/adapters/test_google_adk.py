"""Google ADK's own runner and flows, with a scripted model."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import Field

from palimpsest._adapt import Budget
from palimpsest._contents import apply_fit, call_ids, messages
from palimpsest.google_adk import PalimpsestPlugin
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
APP, USER = "depots", "ann"
OUTSIDE = 400
"""Tokens of the instruction and the tool's definition."""
STREAMED = pytest.mark.parametrize("stream", [False, True])


class TooLong(Exception):
    """The provider's error."""

    code = 400


def content_of(contents: Sequence[types.Content]) -> Any:
    """Return the parts of contents that a model reads."""
    return [
        part.text
        or (part.function_call and part.function_call.args)
        or (part.function_response and part.function_response.response)
        for content in contents
        for part in content.parts or ()
    ]


def tokens(contents: Sequence[types.Content]) -> int:
    """Return the tokens of a request as the provider counts them."""
    return size(content_of(contents)) + OUTSIDE


class Model(BaseLlm):
    """A model that looks at two depots a round until it has seen all, and returns their number. Records its inputs."""

    model: str = "gemini-2.5-flash"
    rounds: int = ROUNDS
    looked: int = 0
    overflows: int = 0
    breaks: bool = False
    sent: list[list[types.Content]] = Field(default_factory=list)

    def answer(self, contents: Sequence[types.Content]) -> list[types.Part]:
        self.sent.append(list(contents))
        if self.overflows:
            self.overflows -= 1
            raise TooLong(TOO_LONG)
        if self.looked >= self.rounds:
            return [types.Part(text=f"I looked at {self.looked}.")]
        self.looked += 2
        calls = [types.FunctionCall(name="depot", args={"number": self.looked - n}) for n in (1, 0)]
        signed = types.Part(function_call=calls[0], thought_signature=b"signed")
        return [types.Part(text=f"Round {self.looked}."), signed, types.Part(function_call=calls[1])]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = self.answer(llm_request.contents)
        cached = 9 if len(llm_request.contents) > 1 else 0  # LiteLlm's 0 means no figure
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=tokens(llm_request.contents), cached_content_token_count=cached, candidates_token_count=7
        )
        if stream:
            for part in parts:
                if part.text:
                    yield LlmResponse(content=types.Content(role="model", parts=[part]), partial=True)
                    if self.breaks:
                        raise TooLong(TOO_LONG)
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=used, partial=False)


class Own(BasePlugin):
    """Records the contents before they are budgeted."""

    def __init__(self) -> None:
        super().__init__("own")
        self.seen: list[list[types.Content]] = []

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> None:
        self.seen.append(list(llm_request.contents))


def depot(number: int) -> str:
    """Look at a depot."""
    return report(number)


def agent(model: Model, name: str = "looker") -> LlmAgent:
    return LlmAgent(name=name, model=model, instruction=PROMPT, tools=[depot])


def plugin_of(palimpsest: Gate, **more: Any) -> PalimpsestPlugin:
    given = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    return PalimpsestPlugin(**{**given, **more})


async def run(runner: InMemoryRunner, sid: str, prompt: str, *, stream: bool = False) -> str:
    session = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id=sid)
    if session is None:
        await runner.session_service.create_session(app_name=APP, user_id=USER, session_id=sid)
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    message = types.Content(role="user", parts=[types.Part(text=prompt)])
    last = ""
    async for event in runner.run_async(user_id=USER, session_id=sid, new_message=message, run_config=config):
        if event.content and not event.partial:
            last = "".join(part.text or "" for part in event.content.parts or ())
    return last


def runner_of(model: Model, *plugins: BasePlugin) -> InMemoryRunner:
    return InMemoryRunner(agent(model), app_name=APP, plugins=list(plugins))


def name_of(sid: str) -> str:
    return f"{APP}:{USER}:{sid}"


@STREAMED
async def test_every_call_of_a_long_run_fits_and_kept_contents_are_the_same_objects(
    palimpsest: Gate, stream: bool
) -> None:
    sid, model, own = f"long-{stream}", Model(), Own()
    runner = runner_of(model, own, plugin_of(palimpsest))
    assert await run(runner, sid, "Look at all depots.", stream=stream) == f"I looked at {ROUNDS}."
    assert len(model.sent) == ROUNDS // 2 + 1
    assert all(size(content_of(contents)) < ROOM for contents in model.sent)
    assert size(content_of(own.seen[-1])) > 3 * ROOM
    last, before = model.sent[-1], own.seen[-1]
    kept = [one for one in last if any(one is other for other in before)]
    assert last[-1] is before[-1]
    assert 2 < len(kept) < len(before)
    assert report(1).splitlines()[32] not in str([part.function_response for one in last for part in one.parts or ()])
    for contents in model.sent:  # the provider requires each call's response in the next content
        for at, content in enumerate(contents):
            calls = [part.function_call.name for part in content.parts or () if part.function_call]
            if calls:
                parts = contents[at + 1].parts or ()
                assert [part.function_response.name for part in parts if part.function_response] == calls

    made = palimpsest.contexts[-1][1]["request"]["contents"]  # the log has the signatures, too
    signed = [part["thought_signature"] for one in made for part in one["parts"] if "thought_signature" in part]
    assert signed and set(signed) == {base64.b64encode(b"signed").decode()}

    events = palimpsest.events(name_of(sid))
    assert [event.type for event in events].count("tool.result") == ROUNDS
    assert events[-1].type == "assistant.message"
    assert len(palimpsest.outcomes) == len(palimpsest.contexts) == len(model.sent)
    assert "cache_read_tokens" not in palimpsest.outcomes[0]["usage"]
    told = palimpsest.outcomes[1]["usage"]
    counted = tokens(model.sent[1])
    assert (told["input_tokens"], told["cache_read_tokens"], told["output_tokens"]) == (counted, 9, 7)

    model.rounds = 0
    assert await run(runner, sid, "Once more?", stream=stream) == f"I looked at {ROUNDS}."
    assert len(palimpsest.events(name_of(sid))) == len(events) + 2  # the prompt and the response, nothing twice
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{name_of(sid)}@line.1"}


@STREAMED
async def test_a_call_that_was_too_long_is_retried_once_with_less(palimpsest: Gate, stream: bool) -> None:
    sid, model = f"overflow-{stream}", Model()
    runner = runner_of(model, plugin_of(palimpsest, max_tokens=20_000))
    await run(runner, sid, "Look at all depots.", stream=stream)
    calls, model.overflows = len(model.sent), 1
    assert await run(runner, sid, "And now?", stream=stream) == f"I looked at {ROUNDS}."
    assert len(model.sent) == calls + 2
    assert size(content_of(model.sent[-1])) < size(content_of(model.sent[-2]))
    assert sum(1 for one in palimpsest.outcomes if one.get("error")) == 1
    model.overflows = 2
    with pytest.raises(TooLong):
        await run(runner, sid, "And then?", stream=stream)
    assert sum(1 for one in palimpsest.outcomes if one.get("error")) == 3


async def test_an_overflow_after_the_answer_has_begun_gets_no_smaller_context(palimpsest: Gate) -> None:
    runner = runner_of(Model(breaks=True), plugin_of(palimpsest))
    with pytest.raises(TooLong):
        await run(runner, "begun", "Look at all depots.", stream=True)
    assert [answer["action"] for _, answer in palimpsest.posted("/outcome")] == ["retry"]
    assert len(palimpsest.contexts) == 1


@STREAMED
async def test_while_the_server_is_away_contents_are_sent_unchanged(
    palimpsest: Gate, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sid, model, own = f"away-{stream}", Model(rounds=4), Own()
    runner = runner_of(model, own, plugin_of(palimpsest))
    palimpsest.mode = "failing"
    assert await run(runner, sid, "Look at four.", stream=stream) == "I looked at 4."
    assert [[id(one) for one in sent] for sent in model.sent] == [[id(one) for one in seen] for seen in own.seen]
    palimpsest.mode, model.rounds = "open", 8
    assert await run(runner, sid, "Look at four more.", stream=stream) == "I looked at 8."
    lines = [record.message.split(" at ")[0].split(",")[0] for record in caplog.records if record.name == "palimpsest"]
    assert lines == ["the server is unreachable", "the server is back"]
    assert [event.type for event in palimpsest.events(name_of(sid))].count("tool.result") == 8


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_run_continues_whatever_the_server_does(
    palimpsest: Gate, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    sid, model, plugin = f"trouble-{trouble}", Model(rounds=2), plugin_of(palimpsest)
    runner = runner_of(model, plugin)
    assert await run(runner, sid, "Look at two.") == "I looked at 2."
    assert plugin.passed_through == {name_of(sid): len(model.sent) - (trouble == "midway")}
    palimpsest.mode, model.rounds = "open", 4
    assert await run(runner, sid, "Look at two more.") == "I looked at 4."
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert [event.type for event in palimpsest.events(name_of(sid))].count("tool.result") == 4


async def test_agents_side_by_side_in_one_session_and_sessions_side_by_side(palimpsest: Gate) -> None:
    plugin = plugin_of(palimpsest)
    pair = ParallelAgent(
        name="pair", sub_agents=[agent(Model(rounds=6), "left"), agent(Model(looked=10, rounds=16), "right")]
    )
    both = InMemoryRunner(pair, app_name=APP, plugins=[plugin])
    alone = runner_of(Model(rounds=6), plugin)
    await asyncio.gather(run(both, "pair", "Look."), run(alone, "alone", "Look."))
    assert [event.type for event in palimpsest.events(name_of("alone"))].count("tool.result") == 6
    lines = {answer["line"] for body, answer in palimpsest.contexts if answer["session"] == name_of("pair")}
    assert len(lines) == 2
    for line in lines:
        assert [event.type for event in palimpsest.events(line)].count("tool.result") == 6
    assert len(palimpsest.outcomes) == len(palimpsest.contexts)


def test_a_runner_that_blocks(palimpsest: Gate) -> None:
    model = Model()
    runner = runner_of(model, plugin_of(palimpsest))
    asyncio.run(runner.session_service.create_session(app_name=APP, user_id=USER, session_id="blocking"))
    for prompt in ("Look at all depots.", "And now?"):  # each in an event loop of its own
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        *_, last = runner.run(user_id=USER, session_id="blocking", new_message=message)
        assert last.content is not None and last.content.parts is not None
        assert last.content.parts[0].text == f"I looked at {ROUNDS}."
    assert all(size(content_of(contents)) < ROOM for contents in model.sent)
    assert len(palimpsest.outcomes) == len(palimpsest.contexts) == len(model.sent)


async def test_the_model_recalls_what_it_no_longer_sees(palimpsest: Gate) -> None:
    class Recalling(Model):
        def answer(self, contents: Sequence[types.Content]) -> list[types.Part]:
            if self.looked == ROUNDS and len(self.sent) == ROUNDS // 2:
                self.sent.append(list(contents))
                call = types.FunctionCall(name="recall", args={"query": "crate depot 3", "limit": 1})
                return [types.Part(function_call=call)]
            return super().answer(contents)

    model = Recalling()
    runner = runner_of(model, plugin_of(palimpsest, recall=True))
    assert await run(runner, "recall", "Look at all depots.") == f"I looked at {ROUNDS}."
    assert "of depot 3 was weighed" in json.dumps(content_of(model.sent[-1][-1:]))


async def test_the_session_has_the_names_of_adks_own_or_what_a_function_gives(palimpsest: Gate) -> None:
    await run(runner_of(Model(rounds=2), plugin_of(palimpsest)), "an odd/name", "Look.")
    own = palimpsest.contexts[0][1]["session"]
    assert own.startswith(f"{APP}:{USER}:an-odd-name:")
    named = plugin_of(palimpsest, session=lambda context: f"mine-{context.user_id}")
    await run(runner_of(Model(rounds=2), named), "any", "Look.")
    assert palimpsest.contexts[-1][1]["session"] == f"mine-{USER}"


def test_calls_without_ids_are_known_by_name_and_place_and_parts_are_as_gemini_has_them() -> None:
    def response(name: str, answer: dict[str, Any], own: str | None = None) -> types.Part:
        return types.Part(function_response=types.FunctionResponse(name=name, response=answer, id=own))

    calls = [types.FunctionCall(name=name, args={}, id=own) for name, own in (("a", None), ("b", None), ("a", "own"))]
    image = types.Part.from_bytes(data=b"png", mime_type="image/png")
    asked = types.Content(role="user", parts=[types.Part(text="Look."), image])
    made = types.Content(role="model", parts=[types.Part(function_call=one) for one in calls])
    found = [response("b", {"error": "no"}), response("a", {"n": object}, "own"), response("a", {"result": "yes"})]
    contents = [asked, made, types.Content(role="user", parts=found), made.model_copy(deep=True)]
    known = call_ids(contents)
    assert [known.get(id(part)) for one in contents for part in one.parts or ()] == [
        *(None, None),
        *("a#1", "b#1", "own"),
        *("b#1", "own", "a#1"),
        *("a#2", "b#2", "own"),
    ]
    shown = list(messages(contents))
    assert shown[0]["parts"] == [{"text": "Look."}, {"inline_data": {"data": "cG5n", "mime_type": "image/png"}}]
    assert shown[2]["parts"][1]["function_response"]["response"] == {"n": str(object)}


async def test_an_open_call_gets_a_pending_result(palimpsest: Gate, sid: str) -> None:
    call = types.FunctionCall(name="depot", args={"number": 1})
    own = [
        types.Content(role="user", parts=[types.Part(text="Look.")]),
        types.Content(role="model", parts=[types.Part(function_call=call)]),
        types.Content(role="user", parts=[types.Part(text="Well?")]),
    ]
    budget = Budget("gemini", {"client": palimpsest.client()})
    fit = await budget.arun(budget.fit(sid, messages(own)))
    assert fit is not None
    shown = apply_fit(fit, own)
    assert [shown[0], shown[1], shown[3]] == own
    assert shown[2].parts is not None and shown[2].parts[0].function_response is not None
    assert shown[2].parts[0].function_response.name == "depot"
