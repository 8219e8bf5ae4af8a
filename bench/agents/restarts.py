"""Scenes with a process whose memory is empty: after a restart, and for imported sessions."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bench.agents.driver import Agent, Times, a_fleet
from bench.agents.rows import Row
from bench.agents.setting import Setting
from bench.agents.sides import Side
from bench.agents.traffic import Life, a_life
from bench.http import Http

AGENTS: Final = 16
OLD: Final = 0.9
"""Share of its life that an agent has completed when the API is restarted."""
IMPORTING: Final = 2
"""Number of sessions that are imported concurrently."""


async def measure_restart(setting: Setting, rounds: int) -> list[Row]:
    """Restart the API while 16 agents are in the middle of long sessions, and time their contexts."""
    single, rest = Row("first context of all"), Row("then 15 at once: all answered", ".0f")
    rest_p50, repeated = Row("... p50"), Row("the same again, one after the other, p50")
    fleets = [
        (side, await a_fleet(side, setting.lives, AGENTS, setting.new_name("old"), lambda _: OLD))
        for side in setting.sides
    ]
    for number in range(rounds):
        for side, fleet in fleets:
            await side.idle()
            await side.restart()
            single.add(side, await _context_ms(fleet[0]))
            wall, times = await _concurrently(fleet[1:])
            rest.add(side, wall)
            rest_p50.add(side, statistics.median(times))
            repeated.add(side, statistics.median([await _context_ms(agent) for agent in fleet]))
        setting.say(f"restarted, round {number + 1} of {rounds}")
    return [single, rest, rest_p50, repeated]


async def measure_import(setting: Setting, rounds: int, events: int) -> list[Row]:
    """Post sessions in bulk, and time their first contexts in a process that was started afterwards."""
    written = Row("an import's append of 500 events, p50", ".0f")
    single = Row(f"first context of a session of {events:,} events, in a new process")
    after_summary = Row("... when the worker has summarized it")
    held, busy = Row("16 such at once: all answered, no worker", ".0f"), Row("... the worker at work on them", ".0f")
    repeated = Row("asked again, p50")
    for number in range(rounds):
        lives = [_life(setting, AGENTS * number + one, events) for one in range(AGENTS)]
        for side in setting.sides:
            fleets = [_newcomers(setting, side, part) for part in (lives[:1], lives[:1], lives, lives)]
            summarized, first, idle, worked = fleets
            await _import(summarized, events)
            await side.idle()
            side.suspend_worker()
            written.add(side, statistics.median(await _import([*first, *idle], events)))
            await side.restart()
            single.add(side, await _context_ms(first[0]))
            await side.restart()
            after_summary.add(side, await _context_ms(summarized[0]))
            await side.restart()
            held.add(side, (await _concurrently(idle))[0])
            repeated.add(side, statistics.median([await _context_ms(agent) for agent in idle]))
            side.resume_worker()
            await _import(worked, events)
            await side.restart()
            busy.add(side, (await _concurrently(worked))[0])
            await asyncio.gather(*[side.erase(agent.http, agent.session) for fleet in fleets for agent in fleet])
            await side.idle()
            setting.say(f"imported, round {number + 1} of {rounds}, {side.name}")
    return [written, single, after_summary, held, busy, repeated]


def _life(setting: Setting, first: int, events: int) -> Life:
    return a_life(setting.recordings, first, setting.ask.form, events=events)


def _newcomers(setting: Setting, side: Side, lives: Sequence[Life]) -> list[Agent]:
    """Return agents that connect with their first request: until then, a server would close an idle connection."""
    name = setting.new_name("imported")
    return [Agent(side, Http(side.port), f"{name}-{number}", [life]) for number, life in enumerate(lives)]


async def _import(agents: Sequence[Agent], events: int) -> list[float]:
    """Post whole sessions, IMPORTING at a time; return the time of each request in ms."""
    times: list[float] = []
    waiting = list(agents)

    async def work() -> None:
        while waiting:
            agent = waiting.pop()
            await agent.side.open(agent.http, agent.session, agent.lives[0])
            for messages in agent.lives[0].batches(events):
                begun = time.perf_counter()
                await agent.side.append(agent.http, agent.session, messages)
                times.append((time.perf_counter() - begun) * 1e3)

    await asyncio.gather(*[work() for _ in range(IMPORTING)])
    return times


async def _context_ms(agent: Agent) -> float:
    """Request a context; return its time in ms."""
    begun = time.perf_counter()
    await agent.request_context(Times())
    return (time.perf_counter() - begun) * 1e3


async def _concurrently(agents: Sequence[Agent]) -> tuple[float, list[float]]:
    """Request all agents' contexts concurrently; return the total time and each context's time, in ms."""
    begun = time.perf_counter()
    times = await asyncio.gather(*map(_context_ms, agents))
    return (time.perf_counter() - begun) * 1e3, list(times)
