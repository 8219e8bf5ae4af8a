"""The Agents SDK's `OpenAIResponsesCompactionSession` at the gateway, with an upstream that has no compactions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession, set_tracing_disabled
from agents.memory import OpenAIResponsesCompactionSession
from openai import AsyncOpenAI

from palimpsest import Palimpsest
from tests.adapters.conftest import serving

Json = dict[str, Any]
TURNS, WINDOW = 20, 4_000
WORD = "heron-7"


@contextmanager
def upstream() -> Iterator[tuple[str, list[Json]]]:
    """Serve responses, and nothing else; yield the URL and the requests."""
    requests: list[Json] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            known = self.path == "/v1/responses"
            if known:
                requests.append(body)
            answer = json.dumps(response(len(requests)) if known else {"error": {"message": "no such path"}}).encode()
            self.send_response(200 if known else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def response(number: int) -> Json:
    part = {"type": "output_text", "text": f"Noted, answer {number}.", "annotations": []}
    message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 900, "output_tokens": 9, "total_tokens": 909}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    head = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "gpt-4.1", "status": "completed"}
    rest = {"parallel_tool_calls": True, "tools": [], "tool_choice": "auto", "metadata": {}}
    return {**head, **rest, "output": [message], "usage": usage}


@pytest.mark.parametrize("mode", ["previous_response_id", "input"])
async def test_a_session_that_is_compacted_again_and_again_forgets_nothing_it_was_told(mode: Any) -> None:
    set_tracing_disabled(True)
    with upstream() as (url, requests), serving(PALIMPSEST_GATEWAY_OPENAI_URL=url) as server:
        Palimpsest(base_url=server).session(mode).put_session(policy={"window_tokens": WINDOW})
        client = AsyncOpenAI(
            base_url=f"{server}/gateway/openai/v1", api_key="sk-own", default_headers={"x-palimpsest-session": mode}
        )
        compacted: list[int] = []

        def due(context: Json) -> bool:
            if len(context["compaction_candidate_items"]) < 5:
                return False
            compacted.append(len(context["session_items"]))
            return True

        session = OpenAIResponsesCompactionSession(
            mode, SQLiteSession(mode), client=client, compaction_mode=mode, should_trigger_compaction=due
        )
        agent = Agent(name="gate", instructions="You keep notes.", model=OpenAIResponsesModel("gpt-4.1", client))
        run = RunConfig(model_settings=ModelSettings(store=mode == "previous_response_id"))
        for number in range(TURNS):
            said = f"The gate word is {WORD}." if number == 0 else f"Note {number}: " + "a crate was weighed. " * 40
            answer = await Runner.run(agent, said, session=session, run_config=run)
            assert answer.final_output == f"Noted, answer {number + 1}."
        items = await session.get_items()
    assert compacted == [10, 11, 11, 11]  # five turns, then the item before and five turns
    assert [item.get("type") for item in items].count("compaction") == 1
    assert len(requests) == TURNS
    assert "compaction" not in json.dumps(requests)
    assert all(len(json.dumps(request)) / 4 <= WINDOW for request in requests)
    assert WORD in json.dumps(requests[-1])
