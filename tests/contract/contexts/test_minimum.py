"""The minimum named in a refusal suffices: every target from there on succeeds, in every preset."""

import random
from typing import Any

import httpx
import pytest

from app.core.policy.policy import PRESETS

FIRST, *OTHERS = PRESETS
SESSIONS = 6
WINDOWS = range(45, 900, 19)


@pytest.mark.parametrize("preset", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
async def test_i2_no_target_from_the_named_minimum_on_is_refused(client: httpx.AsyncClient, preset: str) -> None:
    for number in range(SESSIONS):
        await client.put(f"/v1/sessions/{number}", json={"policy": preset})
        posted = await client.post(f"/v1/sessions/{number}/events", json={"events": _events(random.Random(number))})
        assert posted.status_code == 201, posted.text
        named: set[int] = set()
        refused: list[int] = []
        taken: list[int] = []
        for window in WINDOWS:
            asked = {"format": "openai", "max_tokens": window, "view": f"of-{window}"}
            answer = await client.post(f"/v1/sessions/{number}/context", json=asked)
            body = answer.json()
            if answer.status_code == 422:
                assert body["type"] == "/problems/context-infeasible", body
                named.add(body["minimum_tokens"])
                refused.append(body["target"])
            else:
                taken.append(body["tokens"]["target"])
                assert body["tokens"]["estimate"] <= body["tokens"]["target"]
        assert refused
        assert taken
        assert max(refused) < min(named) <= min(taken)


async def test_i2_the_newest_round_is_part_of_the_minimum_however_little_is_loaded(client: httpx.AsyncClient) -> None:
    """The window bounds how much of a log is loaded, but the newest round counts whole even if it began before that."""
    calls = [{"type": "tool.call", "call_id": f"c{n}", "tool": "run", "arguments": {"of": "x " * 90}} for n in range(3)]
    results = [{"type": "tool.result", "call_id": f"c{n}", "content": f"answer {n} " + "w " * 900} for n in range(3)]
    asks = {"type": "user.message", "content": "Please look. " * 30}
    posted = await client.post("/v1/sessions/s/events", json={"events": [asks, *calls, *results]})
    assert posted.status_code == 201, posted.text
    named = set()
    for window in range(60, 600, 60):
        answer = await client.post("/v1/sessions/s/context", json={"format": "openai", "max_tokens": window})
        assert answer.status_code == 422, answer.text
        named.add(answer.json()["minimum_tokens"])
    assert len(named) == 1


def _events(dice: random.Random) -> list[dict[str, Any]]:
    """Return short and long turns, results of every size, and a running turn that must stay."""
    events: list[dict[str, Any]] = [{"type": "system.prompt", "content": "You help."}]
    for turn in range(dice.randrange(1, 6)):
        events.append({"type": "user.message", "content": "Please look. " * dice.randrange(1, 9)})
        for number in range(dice.randrange(4)):
            call_id = f"c{turn}_{number}"
            lines = dice.choice((1, 5, 12, 40, 300))
            events += [
                {"type": "tool.call", "call_id": call_id, "tool": "read", "arguments": {"path": f"src/{call_id}.py"}},
                {"type": "tool.result", "call_id": call_id, "content": f"line of {call_id}\n" * lines},
            ]
        if dice.randrange(2):
            events.append({"type": "assistant.message", "content": "Found it. " * dice.randrange(1, 30)})
    return [*events, {"type": "user.message", "content": "And now?"}]
