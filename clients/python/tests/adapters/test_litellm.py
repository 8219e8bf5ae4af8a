"""LiteLLM's own `acompletion` and Router, with a stand-in of OpenAI's API on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise the import requests it from another host
import litellm
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

from palimpsest.litellm import PalimpsestHook
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
    until,
    warnings_of,
)

Json = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "depot", "parameters": {"type": "object", "properties": {}}}}]
STREAMED = pytest.mark.parametrize("stream", [False, True])
OUTSIDE = 300
"""Tokens of the tool's definition and of the wrapping of messages."""


def tokens(messages: list[Json]) -> int:
    """Return the tokens of a request as the provider counts them."""
    return size(messages) + OUTSIDE


def usage(messages: list[Json]) -> Json:
    """Return the provider's usage of a call."""
    told = {"prompt_tokens": tokens(messages), "completion_tokens": 7, "total_tokens": tokens(messages) + 7}
    again = any(one["role"] == "assistant" for one in messages)
    # LiteLLM has a 0 where Anthropic's usage names no cache reads.
    return {**told, "prompt_tokens_details": {"cached_tokens": 9 if again else 0}}


@dataclass
class Model:
    """A model that looks at two depots a round, then returns their number, and records its inputs."""

    url: str = ""
    rounds: int = ROUNDS
    overflows: int = 0
    sent: list[list[Json]] = field(default_factory=list)

    def answer(self, body: Json) -> tuple[int, Json]:
        self.sent.append(body["messages"])
        if self.overflows:
            self.overflows -= 1
            error = {"message": TOO_LONG, "type": "invalid_request_error", "code": "context_length_exceeded"}
            return 400, {"error": error}
        seen = [call["id"] for one in body["messages"] for call in one.get("tool_calls") or ()]
        done = max([int(call_id.rpartition("-")[2]) for call_id in seen], default=0)
        if done >= self.rounds:
            return 200, {"role": "assistant", "content": f"I looked at {done}."}
        calls = [
            {
                "id": f"call-{n}",
                "type": "function",
                "function": {"name": "depot", "arguments": json.dumps({"number": n})},
            }
            for n in (done + 1, done + 2)
        ]
        return 200, {"role": "assistant", "content": f"Round {done + 2}.", "tool_calls": calls}


@pytest.fixture
def model() -> Iterator[Model]:
    state = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, message = state.answer(body)
            whole: Json = {"id": "c", "created": 1, "model": body["model"]}
            if status == 200 and body.get("stream"):
                calls = [{"index": n, **one} for n, one in enumerate(message.pop("tool_calls", ()))]
                deltas = [{**message, **({"tool_calls": calls} if calls else {})}, {}]
                ends = [None, "tool_calls" if calls else "stop"]
                chunks = [
                    {
                        **whole,
                        "object": "chat.completion.chunk",
                        "choices": [{"index": 0, "delta": d, "finish_reason": f}],
                    }
                    for d, f in zip(deltas, ends, strict=True)
                ]
                chunks.append(
                    {**whole, "object": "chat.completion.chunk", "choices": [], "usage": usage(body["messages"])}
                )
                lines = [f"data: {json.dumps(one)}\n\n" for one in chunks]
                self._say(200, "".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")
                return
            if status == 200:
                end = "tool_calls" if "tool_calls" in message else "stop"
                choice = {"index": 0, "message": message, "finish_reason": end}
                message = {**whole, "object": "chat.completion", "choices": [choice], "usage": usage(body["messages"])}
            self._say(status, json.dumps(message), "application/json")

        def _say(self, status: int, text: str, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
async def hooked(palimpsest: Gate) -> AsyncIterator[None]:
    use(palimpsest)
    yield
    await GLOBAL_LOGGING_WORKER.flush()  # otherwise its reports break off with the event loop
    litellm.logging_callback_manager._reset_all_callbacks()


def use(palimpsest: Gate, **more: Any) -> None:
    litellm.logging_callback_manager._reset_all_callbacks()  # it keeps the first hook of a class for its logs
    settings = {"client": palimpsest.client(), "timeout": palimpsest.timeout, "max_tokens": ROOM, "policy": POLICY}
    settings |= more
    litellm.callbacks = [PalimpsestHook(**settings)]


async def ask(model: Model, messages: list[Json], sid: str | None, *, stream: bool = False, router: Any = None) -> Json:
    """Make one call; return its message as an agent logs it."""
    about: Json = {"litellm_session_id": sid} if sid else {}
    given = {"messages": messages, "tools": TOOLS, "stream": stream, **about}
    if stream:
        given["stream_options"] = {"include_usage": True}
    if router is not None:
        answer = await router.acompletion(model="gpt", **given)
    else:
        answer = await litellm.acompletion(model="openai/gpt-4o", api_base=model.url, api_key="none", **given)
    if stream:
        answer = litellm.stream_chunk_builder([chunk async for chunk in answer])
    message: Json = answer.choices[0].message.model_dump(exclude_none=True)
    return message


async def run(model: Model, messages: list[Json], sid: str | None, *, stream: bool = False, router: Any = None) -> str:
    """Run an agent, which appends to `messages`."""
    while True:
        message = await ask(model, messages, sid, stream=stream, router=router)
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            number = json.loads(call["function"]["arguments"])["number"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": report(number)})


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for LiteLLM's background task, which logs streams."""
    await asyncio.to_thread(until, condition)


def new_conversation() -> list[Json]:
    return [{"role": "system", "content": "You look after depots."}, {"role": "user", "content": "Look at all."}]


@STREAMED
async def test_every_call_of_a_long_run_fits_and_is_reported(
    palimpsest: Gate, model: Model, sid: str, stream: bool
) -> None:
    messages = new_conversation()
    assert await run(model, messages, sid, stream=stream) == f"I looked at {ROUNDS}."
    assert len(model.sent) == ROUNDS // 2 + 1
    assert all(size(sent) < ROOM for sent in model.sent)
    assert size(messages) > 3 * ROOM
    assert report(1).splitlines()[32] not in str([one["content"] for one in model.sent[-1]])
    assert model.sent[-1][-1] == messages[-2]
    asked = len(model.sent)
    await eventually(lambda: len(palimpsest.outcomes) == asked)
    events = palimpsest.events(sid)
    assert [event.type for event in events].count("tool.result") == ROUNDS
    assert len(palimpsest.outcomes) == len(palimpsest.contexts) == asked
    assert palimpsest.outcomes[0]["usage"] == {"input_tokens": tokens(model.sent[0]), "output_tokens": 7}
    told = palimpsest.outcomes[1]["usage"]
    counted = tokens(model.sent[1])
    assert (told["input_tokens"], told["cache_read_tokens"], told["output_tokens"]) == (counted, 9, 7)
    assert palimpsest.contexts[0][0]["model"] == "openai/gpt-4o"
    model.rounds = 0
    messages.append({"role": "user", "content": "Once more?"})
    await ask(model, messages, sid, stream=stream)
    await eventually(lambda: len(palimpsest.outcomes) == asked + 1)
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}


async def test_kept_messages_are_the_same_objects(palimpsest: Gate, sid: str) -> None:
    messages = new_conversation()
    for n in range(ROUNDS):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "depot", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": report(n)})
    before = list(messages)
    changed = await litellm.callbacks[0].async_pre_call_deployment_hook(
        {"model": "gpt-4o", "messages": messages, "litellm_session_id": sid}, "acompletion"
    )
    assert messages == before
    plan = palimpsest.contexts[-1][1]["plan"]
    kept = [message for message, step in zip(messages, plan, strict=True) if step["action"] == "keep"]
    assert 2 < len(kept) < len(messages)
    assert all(any(one is own for one in changed["messages"]) for own in kept)
    again = {**changed, "litellm_session_id": sid}  # an attempt with messages that were already fitted
    await litellm.callbacks[0].async_pre_call_deployment_hook(again, "acompletion")
    assert palimpsest.contexts[-1][1]["appended"] == []
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}


@STREAMED
async def test_a_router_that_tries_again_after_too_long_a_call_sends_less(
    palimpsest: Gate, model: Model, sid: str, stream: bool
) -> None:
    use(palimpsest, max_tokens=20_000)
    deployment = {"model": "openai/gpt-4o", "api_base": model.url, "api_key": "none"}
    router = litellm.Router(
        model_list=[{"model_name": name, "litellm_params": deployment} for name in ("gpt", "same")],
        context_window_fallbacks=[{"gpt": ["same"]}],
        num_retries=0,
    )
    messages = new_conversation()
    await run(model, messages, sid, router=router)
    messages.append({"role": "user", "content": "And now?"})
    calls, model.overflows, model.rounds = len(model.sent), 1, 0
    assert (await run(model, messages, sid, stream=stream, router=router)).startswith("I looked at")
    assert len(model.sent) == calls + 2
    assert size(model.sent[-1]) < size(model.sent[-2])
    assert sum(1 for one in palimpsest.outcomes if one.get("error")) == 1


@STREAMED
async def test_while_the_server_is_away_messages_are_sent_unchanged(
    palimpsest: Gate, model: Model, sid: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model.rounds, messages = 4, new_conversation()
    palimpsest.mode = "failing"
    assert await run(model, messages, sid, stream=stream) == "I looked at 4."
    assert model.sent[-1] == messages[:-1]
    palimpsest.mode, model.rounds = "open", 8
    messages.append({"role": "user", "content": "Four more."})
    assert await run(model, messages, sid, stream=stream) == "I looked at 8."
    lines = [record.message.split(" at ")[0].split(",")[0] for record in caplog.records if record.name == "palimpsest"]
    assert lines == ["the server is unreachable", "the server is back"]
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == 8


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_run_continues_whatever_the_server_does(
    palimpsest: Gate, model: Model, sid: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    use(palimpsest)
    model.rounds, messages = 2, new_conversation()
    assert await run(model, messages, sid) == "I looked at 2."
    [hook] = [one for one in litellm.callbacks if isinstance(one, PalimpsestHook)]
    assert hook.passed_through == {sid: len(model.sent) - (trouble == "midway")}
    palimpsest.mode, model.rounds = "open", 4
    messages.append({"role": "user", "content": "Two more."})
    assert await run(model, messages, sid) == "I looked at 4."
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == 4


async def test_conversations_side_by_side_and_one_without_a_session(
    palimpsest: Gate, model: Model, sid: str, caplog: pytest.LogCaptureFixture
) -> None:
    model.rounds = 6
    names = [f"{sid}-1", f"{sid}-2", None]
    answers = await asyncio.gather(*(run(model, new_conversation(), name) for name in names))
    assert set(answers) == {"I looked at 6."}
    for name in names[:2]:
        assert [event.type for event in palimpsest.events(str(name))].count("tool.result") == 6
    assert {answer["session"] for _, answer in palimpsest.contexts} == set(names[:2])
    assert sum(1 for record in caplog.records if "litellm_session_id" in record.message) == 1


async def test_other_calls_go_untouched_and_recall_is_refused(palimpsest: Gate, model: Model, sid: str) -> None:
    hook = litellm.callbacks[0]
    assert await hook.async_pre_call_deployment_hook({"input": "x", "litellm_session_id": sid}, "aembedding") is None
    about = {"api_base": model.url, "api_key": "none", "litellm_session_id": sid}
    model.rounds = 0
    blocking = litellm.completion
    await asyncio.to_thread(blocking, model="openai/gpt-4o", messages=new_conversation(), **about)
    assert model.sent == [new_conversation()] and palimpsest.contexts == []
    with pytest.raises(ValueError, match="recall"):
        PalimpsestHook(recall=True)
