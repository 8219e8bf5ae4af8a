"""`make bench NAME=agents` in short: agents on real processes, ours against the floor in turn, compared by ratio."""

import asyncio
import json
import multiprocessing
import statistics
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.agents.driver import Agent, a_fleet, a_slice
from bench.agents.replay import AgentResults, Background
from bench.agents.sides import ContextParameters, Floor, Ours, execute
from bench.agents.steps import COUNTED_STEPS, InOneRequest, InThreeRequests, commits_a_step
from bench.agents.tables import lived_table
from bench.agents.traffic import lives_of, load
from bench.quality.servers import Stack
from bench.speed import floor
from tests.support import validators
from tests.support.processes import Process, palimpsest

SAMPLES = Path(__file__).parent.parent / "samples"
AGENTS = 4
PLACE = 0.25
"""Share of its life that an agent has completed, which exceeds its window."""
CALLS = 10
ROUNDS = 5
SHARE_MIN = 1 / 30
"""Minimum share of the floor's contexts a second. Measured: a tenth to a quarter; less than this is not noise."""
ASK = ContextParameters(window=12_000, floor_tokens=9_800)


class Forked(Stack):
    """API and worker as forked processes, which need no imports."""

    async def run(self, role: str) -> Process:
        ours = {name.removeprefix("PALIMPSEST_"): value for name, value in self.environment.items()}
        return await palimpsest(role, settings=ours)


@pytest.fixture
async def sides(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[Floor, Ours]]:
    """Start both sides on one Postgres, each in processes of its own."""
    await execute(database_url, floor.MESSAGES_TABLE)
    base = Floor(database_url, ASK, spawning=multiprocessing.get_context("forkserver"))
    stack = Forked(database_url, tmp_path)
    try:
        await asyncio.gather(base.start(), stack.start())
        yield base, Ours("ours", database_url, stack, ASK)
    finally:
        await stack.stop()
        base.stop()


@pytest.mark.wing("telemetry")
async def test_agents_are_served_at_a_fair_share_of_the_floors_pace(sides: tuple[Floor, Ours]) -> None:
    """Every context of ours is checked against its target, and each agent's last one against its provider's rules."""
    lives = lives_of(load(SAMPLES), ASK.form)
    fleets = [await a_fleet(side, lives, AGENTS, side.name, lambda _: PLACE) for side in sides]
    rounds = [[await a_slice(fleet, CALLS) for fleet in fleets] for _ in range(ROUNDS)]
    shares = [ours.per_second / base.per_second for base, ours in rounds]
    assert statistics.median(shares) >= SHARE_MIN, shares

    base, ours = sides
    await ours.idle()
    for agent in fleets[1]:
        answer = json.loads(await ours.context(agent.http, agent.session))
        assert answer["tokens"]["estimate"] <= answer["tokens"]["target"]
        validators.check_anthropic(answer["request"])
        assert await ours.stack.all(f"/v1/sessions/{agent.session}/summaries"), "the worker wrote none"
    newest = json.loads(await base.context(fleets[0][0].http, fleets[0][0].session))
    assert newest["messages"][-1] == json.loads(last_posted(fleets[0][0]))

    seen = [
        AgentResults(AGENTS, side.name, tuple(one), (Background(None, 0.0, 0),) * ROUNDS)
        for side, one in zip(sides, zip(*rounds, strict=True), strict=True)
    ]
    figures = [row.split(" | ")[2] for row in lived_table(seen).splitlines()[2:]]
    assert figures[2] == f"{statistics.median(shares):.2f} ×"


@pytest.mark.wing("telemetry")
@pytest.mark.wing("audit")
async def test_a_step_in_one_request_reports_every_outcome_in_fewer_transactions(sides: tuple[Floor, Ours]) -> None:
    _, ours = sides
    lives = lives_of(load(SAMPLES), ASK.form)
    commits = []
    for kind in (InOneRequest, InThreeRequests):
        side = kind(ours.name, ours.url, ours.stack, ASK)
        (agent,) = await a_fleet(side, lives, 1, kind.__name__, lambda _: PLACE)
        await side.idle()
        commits.append(await commits_a_step(side, agent))
        calls = await ours.stack.all(f"/v1/sessions/{agent.session}/calls")
        usage = [call["outcome"] and call["outcome"]["usage"] for call in calls]
        assert len(calls) > COUNTED_STEPS
        assert usage.count(None) == 1, "of the newest call alone"
        assert any(one["cache_read_tokens"] for one in usage if one), "no call has read a prefix of the last"
    assert 1 <= commits[0] <= commits[1] - 1.5, commits


def last_posted(agent: Agent) -> str:
    return agent.lives[agent.life].steps[agent.step - 1].messages[-1]
