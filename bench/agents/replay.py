"""The main scene: agents that replay recorded sessions, with the sides in turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.agents.driver import Agent, Slice, a_fleet, a_slice
from bench.agents.setting import Setting
from bench.agents.sides import Side, cpu_seconds

CALLS: Final = {1: 150, 4: 320}
MANY_CALLS: Final = 640
"""Calls of all agents together in a round, by the number of agents; MANY_CALLS for other numbers."""


@dataclass(frozen=True, slots=True)
class AgentResults:
    """Results of a number of agents on one side: a slice a round, and the worker's CPU and tokens over all rounds."""

    agents: int
    side: str
    slices: tuple[Slice, ...]
    worker_seconds: float
    worker_tokens: int


@dataclass(slots=True)
class _Running:
    fleet: list[Agent]
    slices: list[Slice]
    worker_seconds: float = 0.0
    tokens: int = 0


async def run_agents(
    setting: Setting, sides: Sequence[Side], agents: int, rounds: int, calls: int | None = None
) -> list[AgentResults]:
    """Return the results of `agents` agents on each side.

    Each side's agents replay the same lives from the same places. The first round is not counted. A side's workers
    finish before the next side has its turn.
    """
    each = max(1, (calls or CALLS.get(agents, MANY_CALLS)) // agents)
    running: list[_Running] = []
    for side in sides:
        running.append(_Running(await a_fleet(side, setting.lives, agents, setting.new_name(f"lived{agents}")), []))
        await side.idle()
    for number in range(rounds + 1):
        for side, one in zip(sides, running, strict=True):
            workers = [pid for role, pid in side.pids().items() if not role.startswith("api")]
            before = sum(map(cpu_seconds, workers))
            tokens = await side.tokens()
            found = await a_slice(one.fleet, each, setting.prober, setting.others)
            await side.idle()
            if number:
                one.slices.append(found)
                one.worker_seconds += sum(map(cpu_seconds, workers)) - before
                one.tokens += await side.tokens() - tokens
        setting.say(f"{agents} agents, round {number} of {rounds}")
    for one in running:
        for agent in one.fleet:
            agent.http.close()
    return [
        AgentResults(agents, side.name, tuple(one.slices), one.worker_seconds, one.tokens)
        for side, one in zip(sides, running, strict=True)
    ]
