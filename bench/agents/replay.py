"""The main scene: agents that replay recorded sessions, with the sides in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from bench.agents.driver import Agent, Slice, a_fleet, a_slice
from bench.agents.setting import Setting
from bench.agents.sides import Side, cpu_seconds
from bench.agents.steps import commits_a_step

CALLS: Final = {1: 150, 4: 320}
"""Calls of all agents together in a round, by the number of agents."""
MANY_CALLS: Final = 640
"""Calls for other numbers of agents."""


@dataclass(frozen=True, slots=True)
class Background:
    """CPU seconds of the worker and of Postgres in a round, until the worker was done, and the tokens appended.

    `worker` is None for a side without one, or with one in the API's process.
    """

    worker: float | None
    postgres: float
    tokens: int


@dataclass(frozen=True, slots=True)
class AgentResults:
    """Results of a number of agents on one side: a slice and the background work of each round."""

    agents: int
    side: str
    slices: tuple[Slice, ...]
    background: tuple[Background, ...]


async def run_agents(
    setting: Setting,
    sides: Sequence[Side],
    agents: int,
    rounds: int,
    calls: int | None = None,
    *,
    commits: bool = False,
) -> list[AgentResults]:
    """Return the results of `agents` agents on each side.

    Each side's agents replay the same lives from the same places. The first round is not counted. A side's workers
    finish before the next side has its turn. `commits` also counts, after each round, the commits of a step of the
    first agent.
    """
    each = max(1, (calls or CALLS.get(agents, MANY_CALLS)) // agents)
    fleets: list[list[Agent]] = []
    for side in sides:
        fleets.append(await a_fleet(side, setting.lives, agents, setting.new_name(f"lived{agents}")))
        await side.idle()
    found: list[list[tuple[Slice, Background]]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side, fleet, results in zip(sides, fleets, found, strict=True):
            results.append(await _a_round(setting, side, fleet, each, commits=commits))
        setting.say(f"{agents} agents, round {number} of {rounds}")
    for agent in chain.from_iterable(fleets):
        agent.http.close()
    return [
        AgentResults(agents, side.name, *zip(*results[1:], strict=True))
        for side, results in zip(sides, found, strict=True)
    ]


async def _a_round(
    setting: Setting, side: Side, fleet: Sequence[Agent], calls: int, *, commits: bool
) -> tuple[Slice, Background]:
    """Return the measurements of one side's turn, which ends when its worker is done."""
    workers = [pid for role, pid in side.pids().items() if not role.startswith("api")]
    postgres = setting.others["postgres"]
    tokens, before = await side.tokens(), [cpu_seconds(pid) for pid in (postgres, *workers)]
    found = await a_slice(fleet, calls, setting.prober, setting.others)
    await side.idle()
    spent = [cpu_seconds(pid) - had for pid, had in zip((postgres, *workers), before, strict=True)]
    background = Background(sum(spent[1:]) if workers else None, spent[0], await side.tokens() - tokens)
    if commits:
        found = replace(found, commits=await commits_a_step(side, fleet[0]))
        await side.idle()
    return found, background
