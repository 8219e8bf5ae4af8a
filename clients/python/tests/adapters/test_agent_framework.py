"""Microsoft Agent Framework's own agents and function loop, with a scripted chat client."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)

from palimpsest.agent_framework import PalimpsestProvider, PalimpsestStrategy
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
OUTSIDE = 400
"""Tokens of the instructions and the tool's definition."""


class TooLong(Exception):
    """The provider's error."""

    status_code = 400
    code = "context_length_exceeded"


def content_of(messages: Sequence[Message]) -> Any:
    """Return the parts of messages that a model reads."""
    return [[one.text or one.result or one.arguments for one in message.contents] for message in messages]


def tokens(messages: Sequence[Message]) -> int:
    """Return the tokens of a request as the provider counts them."""
    return size(content_of(messages)) + OUTSIDE


class Model(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[misc, type-arg]
    """A model that looks at two depots a round until it has seen all, and returns their number. Records its inputs."""

    model = "gpt-4o"

    def __init__(self, rounds: int = ROUNDS) -> None:
        super().__init__()
        self.rounds = rounds
        self.sent: list[list[Message]] = []
        self.overflows = 0
        self.breaks = False
        self.looked = 0

    def answer(self, messages: Sequence[Message]) -> list[Content]:
        self.sent.append(list(messages))
        check(messages)
        if self.overflows:
            self.overflows -= 1
            raise TooLong(TOO_LONG)
        if self.looked >= self.rounds:
            return [Content.from_text(f"I looked at {self.looked}.")]
        self.looked += 2
        calls = [(f"call-{self.looked - n}", self.looked - n) for n in (1, 0)]
        said = Content.from_text(f"I look at {calls[0][1]} and the next.")
        return [said, *(Content.from_function_call(i, "depot", arguments=json.dumps({"number": n})) for i, n in calls)]

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse[Any]] | ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        usage: Any = {"input_token_count": tokens(messages), "output_token_count": 7}
        if any(one.role == "assistant" for one in messages):  # the first response names no cache reads
            usage["cache_read_input_token_count"] = 9

        async def whole() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", self.answer(messages))], usage_details=usage)

        async def pieces() -> AsyncIterator[ChatResponseUpdate]:
            for one in self.answer(messages):
                yield ChatResponseUpdate(role="assistant", contents=[one], message_id=f"m{len(self.sent)}")
                if self.breaks:
                    raise TooLong(TOO_LONG)
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_usage(usage)])

        return self._build_response_stream(pieces()) if stream else whole()


def check(messages: Sequence[Message]) -> None:
    """Assert that each call is followed by its result, and each result preceded by its call, as providers require."""
    waiting: list[str | None] = []
    for message in messages:
        results = [one.call_id for one in message.contents if one.type == "function_result"]
        assert results or not waiting, f"no results of {waiting}"
        for call_id in results:
            waiting.remove(call_id)
        waiting += [one.call_id for one in message.contents if one.type == "function_call"]
    assert not waiting


class Own(ChatMiddleware):
    """Records the framework's own messages before they are budgeted."""

    def __init__(self) -> None:
        self.seen: list[list[Message]] = []

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        self.seen.append(list(context.messages))
        await call_next()


def depot(number: int) -> str:
    """Look at a depot."""
    return report(number)


def agent(model: Model, *more: Any, **settings: Any) -> Agent[Any]:
    return Agent(client=model, instructions=PROMPT, tools=[depot], context_providers=list(more), **settings)


def provider_of(palimpsest: Gate, **more: Any) -> PalimpsestProvider:
    given = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    return PalimpsestProvider(**given, **more)


async def run(one: Agent[Any], prompt: str, session: Any, *, stream: bool) -> str:
    if not stream:
        return (await one.run(prompt, session=session)).text
    answer = one.run(prompt, session=session, stream=True)
    return "".join([update.text async for update in answer])


@pytest.mark.parametrize("stream", [False, True])
async def test_every_call_of_a_long_run_fits_and_kept_messages_are_the_same_objects(
    palimpsest: Gate, sid: str, stream: bool
) -> None:
    model, own = Model(), Own()
    one = agent(model, provider_of(palimpsest), middleware=[own])
    session = one.create_session(session_id=sid)
    assert (await run(one, "Look at all depots.", session, stream=stream)).endswith(f"I looked at {ROUNDS}.")
    assert len(model.sent) == ROUNDS // 2 + 1
    assert all(size(content_of(messages)) < ROOM for messages in model.sent)
    assert size(content_of(own.seen[-1])) > 3 * ROOM
    last, before = model.sent[-1], own.seen[-1]
    kept = [one for one in last if any(one is other for other in before)]
    assert last[-1] is before[-1]
    assert 2 < len(kept) < len(before)
    assert report(ROUNDS) in str(last[-1].contents[-1].result)
    assert report(1).splitlines()[32] not in json.dumps(content_of(last))
    assert report(1) in json.dumps(content_of(before), ensure_ascii=False).replace("\\n", "\n")

    events = palimpsest.events(sid)
    assert [event.type for event in events].count("tool.result") == ROUNDS
    assert events[-1].type == "assistant.message"
    assert len(palimpsest.outcomes) == len(palimpsest.contexts) == len(model.sent)
    assert palimpsest.outcomes[0]["usage"] == {"input_tokens": tokens(model.sent[0]), "output_tokens": 7}
    told = palimpsest.outcomes[1]["usage"]
    counted = tokens(model.sent[1]) - 9
    assert (told["input_tokens"], told["cache_read_tokens"], told["output_tokens"]) == (counted, 9, 7)

    model.rounds = 0
    assert await run(one, "Once more?", session, stream=stream) == f"I looked at {ROUNDS}."
    after = palimpsest.events(sid)
    assert len(after) == len(events) + 2  # the prompt and the response, nothing twice
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_was_too_long_is_retried_once_with_less(palimpsest: Gate, sid: str, stream: bool) -> None:
    model = Model()
    one = agent(model, PalimpsestProvider(client=palimpsest.client(), max_tokens=20_000, policy=POLICY))
    session = one.create_session(session_id=sid)
    await run(one, "Look at all depots.", session, stream=stream)
    calls, model.overflows = len(model.sent), 1
    assert await run(one, "And now?", session, stream=stream) == f"I looked at {ROUNDS}."
    assert len(model.sent) == calls + 2
    assert size(content_of(model.sent[-1])) < size(content_of(model.sent[-2]))
    assert [one["error"]["code"] for one in palimpsest.outcomes if one.get("error")] == ["context_length_exceeded"]
    model.overflows = 2
    with pytest.raises(TooLong):
        await run(one, "And now?", session, stream=stream)
    assert sum(1 for one in palimpsest.outcomes if one.get("error")) == 3


async def test_an_overflow_after_the_answer_has_begun_gets_no_smaller_context(palimpsest: Gate, sid: str) -> None:
    model = Model()
    model.breaks = True
    one = agent(model, provider_of(palimpsest))
    with pytest.raises(TooLong):
        await run(one, "Look at all depots.", one.create_session(session_id=sid), stream=True)
    assert [answer["action"] for _, answer in palimpsest.posted("/outcome")] == ["retry"]
    assert len(palimpsest.contexts) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_while_the_server_is_away_messages_are_sent_unchanged(
    palimpsest: Gate, sid: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, own = Model(4), Own()
    one = agent(model, provider_of(palimpsest), middleware=[own])
    session = one.create_session(session_id=sid)
    palimpsest.mode = "failing"
    assert (await run(one, "Look at four.", session, stream=stream)).endswith("I looked at 4.")
    assert [[id(m) for m in sent] for sent in model.sent] == [[id(m) for m in seen] for seen in own.seen]
    palimpsest.mode, model.rounds = "open", 8
    assert (await run(one, "Look at four more.", session, stream=stream)).endswith("I looked at 8.")
    lines = [record.message.split(" at ")[0].split(",")[0] for record in caplog.records if record.name == "palimpsest"]
    assert lines == ["the server is unreachable", "the server is back"]
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == 8


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_run_continues_whatever_the_server_does(
    palimpsest: Gate, sid: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    model, provider = Model(2), provider_of(palimpsest)
    one = agent(model, provider)
    session = one.create_session(session_id=sid)
    assert (await run(one, "Look at two.", session, stream=False)).endswith("I looked at 2.")
    assert provider.passed_through == {sid: len(model.sent) - (trouble == "midway")}
    palimpsest.mode, model.rounds = "open", 4
    assert (await run(one, "Look at two more.", session, stream=False)).endswith("I looked at 4.")
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == 4


async def test_a_stream_that_nobody_reads_to_its_end_is_closed(palimpsest: Gate, sid: str) -> None:
    class Endless(Model):
        closed = 0

        def _inner_get_response(self, **kwargs: Any) -> Any:
            async def pieces() -> AsyncIterator[ChatResponseUpdate]:
                try:
                    while True:
                        yield ChatResponseUpdate(role="assistant", contents=[Content.from_text("and ")])
                finally:
                    self.closed += 1

            return self._build_response_stream(pieces())

    model = Endless()
    one = agent(model, provider_of(palimpsest))
    answer = one.run("Go on.", session=one.create_session(session_id=sid), stream=True)
    async with answer:
        async for _ in answer:
            break
    assert model.closed == 1


async def test_two_concurrent_conversations_and_one_without_a_session(palimpsest: Gate, sid: str) -> None:
    provider = provider_of(palimpsest)

    async def converse(name: str | None) -> str:
        one = agent(Model(6), provider)
        return (await one.run("Look.", session=one.create_session(session_id=name) if name else None)).text

    answers = await asyncio.gather(converse(f"{sid}-1"), converse(f"{sid}-2"), converse(None))
    assert all(answer.endswith("I looked at 6.") for answer in answers)
    for name in (f"{sid}-1", f"{sid}-2"):
        assert [event.type for event in palimpsest.events(name)].count("tool.result") == 6


async def test_the_model_recalls_what_it_no_longer_sees(palimpsest: Gate, sid: str) -> None:
    class Recalling(Model):
        def answer(self, messages: Sequence[Message]) -> list[Content]:
            if self.looked == ROUNDS and len(self.sent) == ROUNDS // 2:
                self.sent.append(list(messages))
                return [
                    Content.from_function_call("again", "recall", arguments='{"query": "crate depot 3", "limit": 1}')
                ]
            return super().answer(messages)

    model = Recalling()
    one = agent(model, provider_of(palimpsest, recall=True))
    answer = await one.run("Look at all depots.", session=one.create_session(session_id=sid))
    assert answer.text.endswith(f"I looked at {ROUNDS}.")
    assert "of depot 3 was weighed" in str(model.sent[-1][-1].contents[-1].result)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_strategy_keeps_excluded_messages_in_the_list(palimpsest: Gate, sid: str, stream: bool) -> None:
    model = Model()
    settings: Any = {"client": palimpsest.client(), "max_tokens": ROOM, "policy": POLICY, "outside_tokens": 200}
    one = agent(model, compaction_strategy=PalimpsestStrategy(session=sid, **settings))
    session = one.create_session()
    assert (await run(one, "Look at all depots.", session, stream=stream)).endswith(f"I looked at {ROUNDS}.")
    assert all(size(content_of(messages)) < ROOM for messages in model.sent)
    events = palimpsest.events(sid)
    assert [event.type for event in events].count("tool.result") == ROUNDS
    palimpsest.mode, model.rounds = "failing", 0
    assert await run(one, "And now?", session, stream=stream) == f"I looked at {ROUNDS}."
    assert size(content_of(model.sent[-1])) > 3 * ROOM
    palimpsest.mode = "open"
    assert await run(one, "And then?", session, stream=stream) == f"I looked at {ROUNDS}."
    assert size(content_of(model.sent[-1])) < ROOM
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}


async def test_all_that_a_message_holds_is_counted_and_stays(palimpsest: Gate, sid: str) -> None:
    class Thinking(Model):
        def answer(self, messages: Sequence[Message]) -> list[Content]:
            said = super().answer(messages)
            return [Content.from_text_reasoning(text="Hm. " * 50, protected_data="signed"), *said]

    model = Thinking(2)
    one = agent(model, PalimpsestProvider(client=palimpsest.client(), max_tokens=30_000))
    picture = Content.from_data(b"png", media_type="image/png")
    prompt = Message("user", ["Look at this.", picture])
    answer = await one.run(prompt, session=one.create_session(session_id=sid))
    assert answer.text.endswith("I looked at 2.")
    assert [content.type for content in model.sent[-1][0].contents] == ["text", "data"]
    assert model.sent[-1][1].contents[0].protected_data == "signed"
    body, made = palimpsest.contexts[-1]
    assert body["messages"][0]["content"][1]["source"]["data"] == "cG5n"
    assert body["messages"][1]["content"][0]["signature"] == "signed"
    assert body["system"] == PROMPT
    assert [tool["function"]["name"] for tool in body["tools"]] == ["depot"]
    assert made["tokens"]["by_source"]["tools"] > 0
    assert {one["action"] for one in made["plan"]} == {"keep"}


@pytest.fixture(autouse=True)
def capture_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
