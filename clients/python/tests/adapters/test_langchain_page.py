"""The code of the documentation's page on LangChain, in an agent that needs four times its window."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool

from tests.adapters.support import Gate, report, size
from tests.adapters.test_langchain import Scripted, calls, overflow

PAGE = Path(__file__).parents[4] / "docs/adapters/langchain.md"
LINES_MAX = 10
ROUNDS = 39
ROOM = 9_500
"""Window in tokens; 39 reports take more than four times as many."""
SEAL = "731946"


@tool
def depot(number: int) -> str:
    """All that is known of a depot."""
    lines = report(number).splitlines()
    return "\n".join([*lines[:30], f"The seal of the vault is {SEAL}.", *lines[30:]] if number == 2 else lines)


class Strict(Scripted):
    """A model with a provider's checks. It looks at all depots, then returns a value of an early one."""

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        unanswered: set[str] = set()
        for message in messages:
            if isinstance(message, ToolMessage):
                assert message.tool_call_id in unanswered, "a result without its call"
                unanswered.remove(message.tool_call_id)
                continue
            assert not unanswered, "a call without its result"
            if isinstance(message, AIMessage):
                unanswered = {str(call["id"]) for call in message.tool_calls}
        assert not unanswered, "a call without its result"
        if size([message.content for message in messages]) > ROOM:
            raise overflow()
        self.script = [*self.script, self._said(messages)]
        return super()._answer(messages)

    def _said(self, messages: list[BaseMessage]) -> AIMessage:
        if len(self.seen) < ROUNDS:
            return calls(len(self.seen))
        found = re.search(r"The seal of the vault is (\d+)", json.dumps([message.content for message in messages]))
        if found is not None:
            return AIMessage(f"It is {found.group(1)}.")
        assert len(self.seen) == ROUNDS, "what was recalled is not in the context"
        call = {"name": "recall", "args": {"query": "seal of the vault"}, "id": "recalled", "type": "tool_call"}
        return AIMessage("", tool_calls=[call])


def code_of_the_page(sid: str, model: Strict) -> dict[str, Any]:
    """Run the page's program with our model, tool, thread and window; `asked` has its last line's arguments."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= LINES_MAX
    for own, ours in {
        '"openai:gpt-5-mini"': "model",
        "[lookup]": "[depot]",
        '"support-42"': repr(sid),
        "32_000": str(ROOM),
        "agent.invoke(": "asked = (",
    }.items():
        assert code.count(own) == 1
        code = code.replace(own, ours)
    program: dict[str, Any] = {"depot": depot, "model": model}
    exec(compile(code, str(PAGE), "exec"), program)  # noqa: S102 (the page is our own)
    return program


def invoke(agent: Any, *asked: Any) -> list[BaseMessage]:
    """Run as on the page."""
    found: list[BaseMessage] = agent.invoke(*asked)["messages"]
    return found


def stream_async(agent: Any, *asked: Any) -> list[BaseMessage]:
    """Run with `astream`, token by token."""

    async def run() -> list[BaseMessage]:
        tokens, state = 0, {}
        async for kind, value in agent.astream(*asked, stream_mode=["messages", "values"]):
            tokens += kind == "messages"
            state = value if kind == "values" else state
        assert tokens > ROUNDS
        found: list[BaseMessage] = state["messages"]
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("run", [invoke, stream_async])
def test_forty_calls_in_a_quarter_of_their_window(
    palimpsest: Gate, sid: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIMPSEST_URL", palimpsest.url)
    model = Strict(script=[], seen=[])
    program = code_of_the_page(sid, model)
    state = run(program["agent"], *program["asked"])
    assert str(state[-1].content).strip() == f"It is {SEAL}."
    assert size([message.content for message in state]) > 4 * ROOM
    assert len(model.seen) > ROUNDS
    assert not [outcome["error"] for outcome in palimpsest.outcomes if outcome.get("error")], "at the first try"
    assert "recalled" in {message.tool_call_id for message in state if isinstance(message, ToolMessage)}
    assert palimpsest.client().session(sid).get_session().model == model.model_name
