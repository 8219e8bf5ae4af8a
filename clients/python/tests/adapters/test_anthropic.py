"""The Anthropic middleware in the SDK's own clients, with a function as the provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, APIStatusError, AsyncAnthropic, BadRequestError, InternalServerError, beta_tool

from palimpsest.anthropic import PalimpsestMiddleware
from tests.adapters.support import POLICY, ROOM, ROUNDS, TROUBLES, Gate, expected_warnings, report, size, warnings_of

Json = dict[str, Any]
DONE = "All depots are in order."
MODEL = "claude-sonnet-5-5"
PROMPT = [{"type": "text", "text": "You look after depots.", "cache_control": {"type": "ephemeral"}}]
TOOLS = [
    {
        "name": "depot",
        "description": "All that is known of a depot.",
        "input_schema": {"type": "object", "properties": {"number": {"type": "integer"}}},
        "cache_control": {"type": "ephemeral"},
    }
]
OVERFLOW = (
    400,
    {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 12500 tokens > 12000 maximum"},
    },
)


def calls(*numbers: int, text: str = "") -> list[Json]:
    """Return the content of a response that calls for depots."""
    said = [{"type": "text", "text": text}] if text else []
    return [
        *said,
        *({"type": "tool_use", "id": f"toolu_{n}", "name": "depot", "input": {"number": n}} for n in numbers),
    ]


def text(said: str) -> list[Json]:
    """Return the content of a response of text only."""
    return [{"type": "text", "text": said}]


class Provider:
    """Responds by a script: contents of messages, or a status and an error. It records the bodies of its requests."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.script, self.seen, self.headers = list(script), list[Json](), list[Mapping[str, str]]()
        self.breaks = False

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        assert str(body).count("cache_control") <= 4, "the API takes four markers"
        said = self.script[min(len(self.seen), len(self.script) - 1)]
        self.seen.append(body)
        self.headers.append(request.headers)
        if isinstance(said, tuple):
            return httpx2.Response(said[0], json=said[1])
        message = {
            "id": f"msg_{len(self.seen)}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": said,
            "stop_reason": "tool_use" if any(one["type"] == "tool_use" for one in said) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": size(body), "output_tokens": 7},
        }
        if len(self.seen) > 1:  # the first response names no cache reads
            message["usage"]["cache_read_input_tokens"] = 3
        if not body.get("stream"):
            return httpx2.Response(200, json=message)
        streamed = list(events(message))
        if self.breaks:
            streamed[-2:] = [OVERFLOW[1]]
        lines = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in streamed)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=lines.encode())


def events(message: Json) -> Iterator[Json]:
    """Yield a message as the API streams it."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
            for word in block["text"].split(" "):
                delta = {"type": "text_delta", "text": word + " "}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
        else:
            yield {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}
    yield {"type": "message_stop"}


class Agent:
    """An agent loop that sends the whole conversation each time."""

    def __init__(self, provider: Provider, middleware: PalimpsestMiddleware, way: str) -> None:
        self.way, self.messages = way, list[Json]()
        transport, more = httpx2.MockTransport(provider), {"api_key": "k", "max_retries": 0, "middleware": [middleware]}
        self.sync = Anthropic(http_client=httpx2.Client(transport=transport), **more)
        self.asynchronous = AsyncAnthropic(http_client=httpx2.AsyncClient(transport=transport), **more)

    def turn(self, said: str, **more: Any) -> str:
        """Run a turn until the model calls no more tools."""
        self.messages.append({"role": "user", "content": said})
        given = {"model": MODEL, "max_tokens": 500, "system": PROMPT, "tools": TOOLS, **more}
        while True:
            reply = self._sent({**given, "messages": self.messages})
            self.messages.append({"role": "assistant", "content": reply.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": report(block.input["number"])}
                for block in reply.content
                if block.type == "tool_use"
            ]
            if not results:
                return str(reply.content[0].text).strip()
            self.messages.append({"role": "user", "content": results})

    def _sent(self, given: Json) -> Any:
        if self.way == "create":
            return self.sync.messages.create(**given)
        if self.way == "stream":
            with self.sync.messages.stream(**given) as stream:
                assert sum(1 for _ in stream) > 3
                return stream.get_final_message()
        return asyncio.run(self._asent(given))

    async def _asent(self, given: Json) -> Any:
        if self.way == "async create":
            return await self.asynchronous.messages.create(**given)
        async with self.asynchronous.messages.stream(**given) as stream:
            assert len([one async for one in stream]) > 3
            return await stream.get_final_message()


WAYS = pytest.mark.parametrize("way", ["create", "stream", "async create", "async stream"])


def middleware_of(palimpsest: Gate, sid: str | None, **settings: Any) -> PalimpsestMiddleware:
    """Return the middleware with a window that is too small for the whole conversation."""
    given = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    given |= settings
    return PalimpsestMiddleware(sid, **given)


@WAYS
def test_twenty_rounds_in_a_quarter_of_their_window(palimpsest: Gate, sid: str, way: str) -> None:
    provider = Provider([*(calls(n) for n in range(ROUNDS)), text(DONE)])
    agent = Agent(provider, middleware_of(palimpsest, sid), way)
    assert agent.turn("Look at all depots.") == DONE
    assert size([str(message) for message in agent.messages]) > 3 * ROOM
    for body in provider.seen:
        assert size(body) < ROOM
        assert (body["model"], body["max_tokens"], body["system"][0]["text"]) == (MODEL, 500, PROMPT[0]["text"])
        assert body["tools"][0]["input_schema"] == TOOLS[0]["input_schema"]
    assert len(palimpsest.contexts) == len(provider.seen) == ROUNDS + 1
    assert palimpsest.contexts[-1][1]["evictions"]
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    reported = [one["usage"] for one in palimpsest.outcomes]
    assert [one["output_tokens"] for one in reported] == [7] * (ROUNDS + 1)
    assert "cache_read_tokens" not in reported[0]
    assert [one["cache_read_tokens"] for one in reported[1:]] == [3] * ROUNDS
    assert palimpsest.events(sid)[-1].type == "assistant.message"


@WAYS
def test_parallel_calls_and_a_conversation_that_goes_on(palimpsest: Gate, sid: str, way: str) -> None:
    provider = Provider([calls(1, 2, text="I look."), text("Both are fine."), text("You are welcome.")])
    agent = Agent(provider, middleware_of(palimpsest, sid, max_tokens=60_000), way)
    agent.turn("Depots 1 and 2?")
    assert agent.turn("Thank you.") == "You are welcome."
    kinds = ["user.message", "assistant.message", "tool.call", "tool.call", "tool.result", "tool.result"]
    kinds += ["assistant.message", "user.message", "assistant.message"]
    assert sorted(event.type for event in palimpsest.events(sid)[:2]) == ["system.prompt", "tools"]
    assert [event.type for event in palimpsest.events(sid)][2:] == kinds
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}
    assert len(provider.seen[-1]["messages"]) == 5


@WAYS
def test_an_observed_run_sends_the_clients_own_requests(palimpsest: Gate, sid: str, way: str) -> None:
    script = [*(calls(n) for n in range(ROUNDS)), text(DONE)]
    observed, alone = Provider(script), Provider(script)
    agent = Agent(observed, middleware_of(palimpsest, sid, observe=True), way)
    assert agent.turn("Look at all depots.") == DONE
    palimpsest.trouble("failing")
    assert Agent(alone, middleware_of(palimpsest, f"{sid}-alone"), way).turn("Look at all depots.") == DONE
    assert observed.seen == alone.seen
    assert {answer["view"] for _, answer in palimpsest.contexts} == {"~observed"}
    assert [outcome["usage"]["input_tokens"] for outcome in palimpsest.outcomes][-1] == size(observed.seen[-1])


@WAYS
def test_a_request_that_was_too_long_is_retried_with_less(palimpsest: Gate, sid: str, way: str) -> None:
    provider = Provider([*(calls(n) for n in range(8)), OVERFLOW, text(DONE)])
    agent = Agent(provider, middleware_of(palimpsest, sid, max_tokens=20_000), way)
    assert agent.turn("Look at all depots.") == DONE
    assert [bool(outcome.get("error")) for outcome in palimpsest.outcomes] == [False] * 8 + [True, False]
    first, second = (size(body) for body in provider.seen[-2:])
    assert second < first


@pytest.mark.parametrize("way", ["stream", "async stream"])
def test_an_overflow_after_the_answer_has_begun_gets_no_smaller_context(palimpsest: Gate, sid: str, way: str) -> None:
    provider = Provider([text(DONE)])
    provider.breaks = True
    with pytest.raises(APIStatusError, match="prompt is too long"):
        Agent(provider, middleware_of(palimpsest, sid), way).turn("Look at all depots.")
    assert [answer["action"] for _, answer in palimpsest.posted("/outcome")] == ["retry"]
    assert len(palimpsest.contexts) == 1


@WAYS
def test_an_overflow_that_stays_is_the_programs(palimpsest: Gate, sid: str, way: str) -> None:
    provider = Provider([calls(1), calls(2), OVERFLOW])
    agent = Agent(provider, middleware_of(palimpsest, sid), way)
    with pytest.raises(BadRequestError, match="prompt is too long"):
        agent.turn("Look at all depots.")
    assert len(provider.seen) == len(palimpsest.contexts) == 4


@WAYS
def test_an_error_is_reported_and_raised(palimpsest: Gate, sid: str, way: str) -> None:
    provider = Provider([(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})])
    with pytest.raises(InternalServerError):
        Agent(provider, middleware_of(palimpsest, sid), way).turn("Hello.")
    assert palimpsest.outcomes[-1]["error"]["status"] == 529
    assert len(provider.seen) == 1


@WAYS
def test_the_server_away_and_back(palimpsest: Gate, sid: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider([calls(1), calls(2), text("One."), calls(3), text("Two.")])
    agent = Agent(provider, middleware_of(palimpsest, sid), way)
    palimpsest.mode = "failing"
    assert agent.turn("Depots?") == "One."
    assert len(provider.seen[-1]["messages"]) == 5
    assert provider.seen[-1]["system"] == PROMPT
    assert len([record for record in caplog.records if "unreachable" in record.message]) == 1
    palimpsest.mode = "open"
    assert agent.turn("And depot 3?") == "Two."
    assert len([record for record in caplog.records if "is back at" in record.message]) == 1
    assert len([event for event in palimpsest.events(sid) if event.type == "tool.result"]) == 3


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_continues_whatever_the_server_does(
    palimpsest: Gate, sid: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    provider = Provider([calls(1), calls(2), text("One."), calls(3), text("Two.")])
    middleware = middleware_of(palimpsest, sid)
    agent = Agent(provider, middleware, "create")
    assert agent.turn("Depots?") == "One."
    assert middleware.passed_through == {sid: 2 if trouble == "midway" else 3}
    palimpsest.mode = "open"
    assert agent.turn("And depot 3?") == "Two."
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert len([event for event in palimpsest.events(sid) if event.type == "tool.result"]) == 3


def test_a_note_and_the_users_text_are_one_message(palimpsest: Gate, sid: str) -> None:
    provider = Provider([text("One."), text("Two.")])
    agent = Agent(provider, middleware_of(palimpsest, sid), "create")
    agent.turn("Hello.")
    palimpsest.client().session(sid).append_events(events=[{"type": "agent.note", "content": "Depot 3 is shut."}])
    agent.turn("And now?")
    sent = provider.seen[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["text"] for block in sent[-1]["content"]] == ["Depot 3 is shut.", "And now?"]


def test_the_session_is_that_of_the_header_or_of_the_user(palimpsest: Gate, sid: str) -> None:
    provider = Provider([text("Yes.")])
    agent = Agent(provider, middleware_of(palimpsest, None), "create")
    agent.turn("One.", extra_headers={"x-palimpsest-session": f"{sid}-a"}, metadata={"user_id": f"{sid}-b"})
    agent.turn("Two.", metadata={"user_id": f"{sid}-b"})
    assert [answer["session"] for _, answer in palimpsest.contexts] == [f"{sid}-a", f"{sid}-b"]
    assert all("x-palimpsest-session" not in headers for headers in provider.headers)
    agent.turn("Three.")
    assert len(palimpsest.contexts) == 2
    assert provider.seen[-1]["messages"][0] == {"role": "user", "content": "One."}


def test_the_sdks_own_tool_runner(palimpsest: Gate, sid: str) -> None:
    @beta_tool
    def depot(number: int) -> str:
        """All that is known of a depot."""
        return report(number)

    provider = Provider([*(calls(n) for n in range(8)), text(DONE)])
    agent = Agent(provider, middleware_of(palimpsest, sid), "create")
    runner = agent.sync.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, tools=[depot], messages=[{"role": "user", "content": "Look."}], thread=False
    )
    assert runner.until_done().content[0].text == DONE
    assert len(palimpsest.contexts) == 9
    assert all(size(body) < ROOM for body in provider.seen)


def test_a_stream_that_is_left_early_is_reported(palimpsest: Gate, sid: str) -> None:
    provider = Provider([text("word " * 50)])
    agent = Agent(provider, middleware_of(palimpsest, sid), "create")
    given: Any = {"model": MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": "Hello."}]}
    stream = agent.sync.messages.create(**given, stream=True)
    iterator = iter(stream)
    for _ in range(4):
        next(iterator)
    stream.close()
    del iterator, stream
    assert "not read to its end" in palimpsest.outcomes[-1]["error"]["message"]


def test_thinking_is_returned_unchanged(palimpsest: Gate, sid: str) -> None:
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, *calls(1, text="I look.")]
    provider = Provider([thought, text(DONE)])
    Agent(provider, middleware_of(palimpsest, sid), "create").turn("Depot 1?")
    assert provider.seen[-1]["messages"][1]["content"] == thought


def test_the_recall_tool_is_not_the_middlewares(palimpsest: Gate) -> None:
    with pytest.raises(ValueError, match="cannot run tools"):
        PalimpsestMiddleware("s", client=palimpsest.client(), recall=True)
