"""Hermes' own agent loop and plugin manager, with a stand-in of OpenAI's API on loopback."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from hermes_cli.plugins import discover_plugins, get_plugin_context_engine, get_plugin_manager
from run_agent import AIAgent
from tools.registry import registry

from palimpsest.hermes import PalimpsestEngine
from tests.adapters.support import (
    POLICY,
    ROOM,
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
WINDOW = 64_000
"""Hermes refuses models with smaller windows."""
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@dataclass
class Model:
    """A model that looks at one depot a round, then returns their number, and records its inputs."""

    url: str = ""
    rounds: int = ROUNDS
    recalls: bool = False
    sent: list[list[Json]] = field(default_factory=list)
    bodies: list[Json] = field(default_factory=list)
    done: int = 0

    def answer(self, body: Json) -> Json:
        self.sent.append(body["messages"])
        self.bodies.append(body)
        if self.recalls:
            self.recalls = False
            return self._call("recall", {"query": "crate depot 1 weighed"})
        if self.done >= self.rounds:
            return {"role": "assistant", "content": f"I looked at {self.done}."}
        self.done += 1
        return self._call("depot", {"number": self.done})

    def _call(self, name: str, arguments: Json) -> Json:
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call-{len(self.sent)}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
def model() -> Iterator[Model]:
    state = Model()

    with chat_provider(state.answer) as state.url:
        yield state


Plug = Callable[..., None]


@pytest.fixture
def plug(palimpsest: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plug:
    """Return a function that writes Hermes' configuration and loads the plugin by the package's own entry point."""
    entries = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["hermes_agent.plugins"]
    metadata = tmp_path / "packages" / "palimpsest_context_client-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: palimpsest-context-client\nVersion: 0\n")
    lines = [f"{name} = {place}" for name, place in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[hermes_agent.plugins]", *lines, ""]))
    monkeypatch.syspath_prepend(str(metadata.parent))
    home = tmp_path / "hermes"
    home.mkdir()
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("PALIMPSEST_URL", palimpsest.url)

    def load(engine: str = "palimpsest", **more: Any) -> None:
        about = {"policy": POLICY, "timeout": palimpsest.timeout, "max_tokens": ROOM + OUTSIDE, **more}
        given = {
            "plugins": {"enabled": ["palimpsest"]},
            "context": {"engine": engine},
            "model": {"context_length": WINDOW},
            "palimpsest": {name: value for name, value in about.items() if value is not None},
        }
        (home / "config.yaml").write_text(yaml.safe_dump(given))
        discover_plugins(force=True)

    return load


OUTSIDE = 4_000
"""Room for Hermes' own system prompt and the definitions of its tools."""


@pytest.fixture(autouse=True)
def depot() -> Iterator[None]:
    schema = {
        "name": "depot",
        "description": "Look at a depot.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    }
    registry.register(name="depot", toolset="depots", schema=schema, handler=lambda args, **_: report(args["number"]))
    yield
    registry.deregister("depot")


def agent(model: Model, sid: str, **more: Any) -> AIAgent:
    return AIAgent(
        base_url=model.url,
        api_key="none",
        provider="custom",
        model="gpt-4o",
        session_id=sid,
        enabled_toolsets=["depots", "context_engine"],
        quiet_mode=True,
        skip_context_files=True,
        skip_memory=True,
        tool_delay=0,
        **more,
    )


def ask(one: AIAgent, text: str, history: list[Json] | None = None) -> Json:
    answer: Json = one.run_conversation(text, conversation_history=history)
    return answer


def texts(messages: list[Json]) -> list[Any]:
    return [message["content"] for message in messages]


def test_every_call_of_a_long_run_fits_and_is_reported(palimpsest: Gate, model: Model, sid: str, plug: Plug) -> None:
    plug()
    pieces: list[str] = []
    one = agent(model, sid, stream_delta_callback=lambda text: pieces.append(text or ""))
    assert isinstance(one.context_compressor, PalimpsestEngine)
    done = ask(one, "Look at all.")
    assert done["final_response"] == f"I looked at {ROUNDS}."
    assert len(model.sent) == ROUNDS + 1
    assert all(size(body["messages"]) + size(body["tools"]) < ROOM + OUTSIDE for body in model.bodies)
    assert size(done["messages"]) > 3 * (ROOM + OUTSIDE)
    assert report(1) in texts(done["messages"]) and report(ROUNDS) in texts(done["messages"])
    assert report(1) not in texts(model.sent[-1]) and report(ROUNDS) in texts(model.sent[-1])
    assert len(palimpsest.outcomes) == len(palimpsest.contexts) == len(model.sent)
    assert palimpsest.outcomes[0]["usage"]["input_tokens"] == size(model.sent[0])
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == ROUNDS
    assert "".join(pieces).strip() == done["final_response"]  # Hermes begins a paragraph after tools
    ask(one, "Once more?", done["messages"])
    assert {answer["line"] for _, answer in palimpsest.contexts} == {f"{sid}@line.1"}


def test_contexts_are_made_for_the_window_that_hermes_knows(
    palimpsest: Gate, model: Model, sid: str, plug: Plug
) -> None:
    plug(max_tokens=None)
    model.rounds = 0
    ask(agent(model, sid), "Hello.")
    assert [body["max_tokens"] for body, _ in palimpsest.contexts] == [WINDOW]


def test_recall_returns_what_was_left_out(palimpsest: Gate, model: Model, sid: str, plug: Plug) -> None:
    plug(recall=True)
    model.rounds = 15
    one = agent(model, sid)
    done = ask(one, "Look at all.")
    model.recalls = True
    again = ask(one, "What was in depot 1?", done["messages"])
    result = next(message for message in reversed(again["messages"]) if message["role"] == "tool")
    assert json.loads(result["content"])["items"]
    assert "of depot 1 was weighed" in result["content"]


def test_an_agent_without_recall_is_offered_none(model: Model, sid: str, plug: Plug) -> None:
    plug()
    model.rounds = 0
    ask(agent(model, sid), "Hello.")
    assert [tool["function"]["name"] for tool in model.bodies[0]["tools"]] == ["depot"]


@pytest.mark.parametrize("trouble", ["failing", *(one for one in TROUBLES if one != "silent")])
def test_a_run_continues_without_the_server_and_catches_up(
    palimpsest: Gate, model: Model, sid: str, plug: Plug, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    palimpsest.trouble(trouble)
    plug()
    model.rounds = 4
    one = agent(model, sid)
    done = ask(one, "Look at four.")
    assert done["final_response"] == "I looked at 4."
    passed = one.context_compressor.passed_through
    assert passed == {sid: len(model.sent) - (trouble == "midway")}
    palimpsest.mode, model.rounds = "open", 8
    assert ask(one, "Four more.", done["messages"])["final_response"] == "I looked at 8."
    assert warnings_of(caplog) == expected_warnings(trouble)
    assert [event.type for event in palimpsest.events(sid)].count("tool.result") == 8


def test_agents_side_by_side_have_sessions_and_windows_of_their_own(
    palimpsest: Gate, model: Model, sid: str, plug: Plug
) -> None:
    plug(max_tokens=None)
    model.rounds = 0
    first, second = agent(model, f"{sid}-1"), agent(model, f"{sid}-2", parent_session_id=f"{sid}-1")
    second.context_compressor.update_model("gpt-4o", 2 * WINDOW)
    ask(first, "Hello.")
    ask(second, "Hello.")
    asked = [(answer["session"], body["max_tokens"]) for body, answer in palimpsest.contexts]
    assert asked == [(f"{sid}-1", WINDOW), (f"{sid}-2", 2 * WINDOW)]
    assert get_plugin_context_engine() not in (first.context_compressor, second.context_compressor)


def test_agents_with_another_engine_and_other_api_modes_go_untouched(
    palimpsest: Gate, model: Model, sid: str, plug: Plug, caplog: pytest.LogCaptureFixture
) -> None:
    plug(engine="compressor")
    model.rounds = 0
    ask(agent(model, sid), "Hello.")
    assert palimpsest.contexts == []
    engine = get_plugin_context_engine()
    engine.on_session_start(sid)
    for _ in range(2):
        request = {"input": []}
        taken = engine.execute(request=request, next_call=lambda one: one, session_id=sid, api_mode="codex_responses")
        assert taken is request
    assert engine.passed_through == {sid: 2}
    assert sum("codex_responses" in record.message for record in caplog.records) == 1


def test_an_unknown_setting_is_reported_by_hermes(plug: Plug, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    plug(max_token=1)
    assert "no setting max_token" in caplog.text
    assert get_plugin_manager()._context_engine is None
