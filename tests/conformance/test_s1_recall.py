"""S1.7: a visible source is not repeated, and one that does not exist is reported missing."""

import httpx
import pytest

from tests.conformance.agent import BY_TURN, WAIT_MS, Agent, batches, evicted_seqs

pytestmark = pytest.mark.wing("recall")

POLICY = {"retention": {"keep_last": 1, "never_evict": []}, "evict": "every_assembly"}
SKILL = "The deploy skill: run migrations first, port 8123. " * 40
FILE = "def main() -> None: ... # nothing of note here. " * 40


async def begin_with_sources(client: httpx.AsyncClient) -> Agent:
    """Create a session that read a skill and then a file; only the file is visible."""
    agent = await Agent.begin(client, POLICY, max_tokens=8_000)
    await agent.user("Deploy it.")
    for call_id, path, text in (("c1", "sk:deploy", SKILL), ("c2", "fi:src/main.py", FILE)):
        await agent.post(
            {"type": "tool.call", "call_id": call_id, "tool": "react.read", "arguments": {"path": path}},
            {"type": "tool.result", "call_id": call_id, "content": text, "path": path},
        )
    await agent.post({"type": "assistant.message", "content": "Read both."})
    await agent.user("And now?")
    return agent


@BY_TURN
async def test_s1_07_in_a_long_session_too(client: httpx.AsyncClient, worker: None, by_turn: bool) -> None:
    """Over ten windows, for a view with contexts all along and for a new one."""
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    turns = [
        [
            {"type": "user.message", "content": f"question-{n}. {'word ' * 400}"},
            {"type": "tool.call", "call_id": f"c{n}", "tool": "react.read", "arguments": {"path": f"fi:part-{n}.py"}},
            {"type": "tool.result", "call_id": f"c{n}", "content": f"lines of part-{n}", "path": f"fi:part-{n}.py"},
        ]
        for n in range(100)
    ]
    for events in batches(turns, by_turn):
        await agent.post(*events)
        if by_turn:
            await agent.context(wait_ms=WAIT_MS)
    for view in ("main", "another"):
        context = await agent.context(view=view, wait_ms=WAIT_MS)
        assert evicted_seqs(context, "summarized")
        [result, call] = await read(client, "fi:part-3.py", call_id=context["call_id"])
        assert (result["content"], result["visible"], call["visible"]) == ("lines of part-3", False, False)
        both = await read(client, "fi:part-99.py", call_id=context["call_id"])
        assert [(item["visible"], "content" in item) for item in both] == [(True, False)] * 2


async def read(client: httpx.AsyncClient, path: str, **more: object) -> list[dict[str, object]]:
    answer = await client.post("/v1/sessions/s/recall", json={"paths": [path], **more})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, object]] = answer.json()["items"]
    return items


async def test_s1_07_what_is_visible_is_said_to_be_and_not_repeated(client: httpx.AsyncClient) -> None:
    agent = await begin_with_sources(client)
    context = await agent.context()
    hidden = await read(client, "sk:deploy", call_id=context["call_id"])
    assert (hidden[0]["type"], hidden[0]["visible"]) == ("tool.result", False)
    assert hidden[0]["content"] == SKILL
    shown = await read(client, "fi:src/main.py", call_id=context["call_id"])
    assert (shown[0]["type"], shown[0]["visible"]) == ("tool.result", True)
    assert all("content" not in item for item in shown if item["visible"])


async def test_s1_07_what_is_absent_is_missing(client: httpx.AsyncClient) -> None:
    await begin_with_sources(client)
    assert await read(client, "so:nowhere") == [{"path": "so:nowhere", "visible": False, "tokens": 0, "missing": True}]
