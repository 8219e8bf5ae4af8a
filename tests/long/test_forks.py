"""Two hundred forks of a long session: the size they add, and the time of their contexts against their parent's."""

import statistics
import time

import httpx
import pytest

from app import tokenizers
from app.core.assembly.inputs import ContextRequest
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT
from tests.conformance.agent import Agent
from tests.contract.lines.test_forks import check_coverage, compact_until, stored_bytes

FORKS = 200
TURNS = 1_250
STEPS = 50
PER_APPEND = 120
BYTES_MAX = 1_000_000
RATIO_MAX = 1.5
"""Ratio of the median times: a fork's first read takes a few more statements, and a loaded machine adds noise."""
WINDOW = 60_000


@pytest.mark.long
async def test_two_hundred_forks_of_ten_thousand_events(
    client: httpx.AsyncClient, database_url: str, database: Database
) -> None:
    agent = await Agent.begin(client, {"window_tokens": WINDOW})
    for first in range(0, TURNS - STEPS, PER_APPEND):
        await agent.post(*(event for turn in range(first, first + PER_APPEND) for event in turn_events(turn)))
        await agent.context()
        await compact_until(client, database_url, database, 1)
    for turn in range(TURNS - STEPS, TURNS):  # a rewind goes back to a turn with a recorded context
        await agent.post(*turn_events(turn))
        await agent.context()
    assert (await client.get("/v1/sessions/s")).json()["head"] == TURNS * 8
    before = await stored_bytes(database)
    began = time.perf_counter()
    for number in range(FORKS):
        asked = {} if number % 2 else {"at": TURNS * 8 - number}
        answer = await client.post("/v1/sessions/s/fork", json={"id": f"f{number}", **asked})
        assert answer.status_code == 201, answer.text
    took = (time.perf_counter() - began) / FORKS
    added = (await stored_bytes(database) - before) / FORKS

    services = wiring.build(Settings(), database, tokenizers.load(Settings().tiktoken_cache_dir))
    cold: dict[str, list[float]] = {"s": [], "f": []}
    warm: dict[str, list[float]] = {"s": [], "f": []}
    for number in range(FORKS):
        for name in ("s", f"f{number}"):
            services.assembly._view_cache.forget(session_key(DEFAULT_TENANT, name))
            for times in (cold, warm):
                began = time.perf_counter()
                await services.assembly.context(DEFAULT_TENANT, name, ContextRequest())
                times[name[0]].append(time.perf_counter() - began)
    parent, fork = (statistics.median(cold[name]) * 1000 for name in ("s", "f"))
    held, held_fork = (statistics.median(warm[name]) * 1000 for name in ("s", "f"))
    print(
        f"\n{FORKS} forks of {TURNS * 8} events: {took * 1000:.1f} ms to make one, {added / 1000:.0f} kB each. "
        f"Context p50, read: {parent:.1f} ms of the parent, {fork:.1f} ms of a fork ({fork / parent:.2f}); "
        f"held: {held:.1f} and {held_fork:.1f} ms ({held_fork / held:.2f})"
    )
    for number in range(0, FORKS, 50):
        await check_coverage(client, f"f{number}")
    assert added < BYTES_MAX
    assert fork < parent * RATIO_MAX
    assert held_fork < held * RATIO_MAX


def turn_events(turn: int) -> list[dict[str, object]]:
    """Return the eight events of a turn, some of them long."""
    path = f"src/part_{turn % 97}.py"
    events: list[dict[str, object]] = [
        {"type": "user.message", "content": f"question {turn}: please look at {path}"},
    ]
    for number in range(3):
        call = f"c{turn}.{number}"
        events += [
            {"type": "tool.call", "call_id": call, "tool": "read", "arguments": {"path": path, "part": number}},
            {"type": "tool.result", "call_id": call, "content": f"line {turn} of {path}\n" * (20 + 40 * number)},
        ]
    return [*events, {"type": "assistant.message", "content": f"Answer {turn}: it is in {path}, line {turn}."}]
