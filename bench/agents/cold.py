"""Scenes in which a process is asked that remembers nothing: after a restart, and of sessions that were imported."""

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
"""The share of its life that an agent has lived when the API is restarted."""
IMPORTING: Final = 2
"""Sessions that are imported at a time."""


async def restarted(setting: Setting, rounds: int) -> list[Row]:
    """Sixteen agents in the middle of long sessions, and the API started anew under them."""
    alone, every = Row("first context of all"), Row("then 15 at once: all answered", ".0f")
    middle, again = Row("... p50"), Row("the same again, one after the other, p50")
    fleets = [
        (side, await a_fleet(side, setting.lives, AGENTS, setting.fresh("old"), lambda _: OLD))
        for side in setting.sides
    ]
    for number in range(rounds):
        for side, fleet in fleets:
            await side.idle()
            await side.restart()
            alone.add(side, await _asked(fleet[0]))
            wall, times = await _at_once(fleet[1:])
            every.add(side, wall)
            middle.add(side, statistics.median(times))
            again.add(side, statistics.median([await _asked(agent) for agent in fleet]))
        setting.say(f"restarted, round {number + 1} of {rounds}")
    return [alone, every, middle, again]


async def imported(setting: Setting, rounds: int, events: int) -> list[Row]:
    """Sessions posted in bulk and asked for the first time by a process that was not there then."""
    written = Row("an import's append of 500 events, p50", ".0f")
    alone = Row(f"first context of a session of {events:,} events, in a new process")
    told = Row("... when the worker has summarized it")
    still, busy = Row("16 such at once: all answered, no worker", ".0f"), Row("... the worker at work on them", ".0f")
    again = Row("asked again, p50")
    for number in range(rounds):
        lives = [_life(setting, AGENTS * number + one, events) for one in range(AGENTS)]
        for side in setting.sides:
            some = [await _newcomers(setting, side, part) for part in (lives[:1], lives[:1], lives, lives)]
            summarized, first, idle, worked = some
            await _import(summarized, events)
            await side.idle()
            side.hold_worker()
            written.add(side, statistics.median(await _import([*first, *idle], events)))
            await side.restart()
            alone.add(side, await _asked(first[0]))
            await side.restart()
            told.add(side, await _asked(summarized[0]))
            await side.restart()
            still.add(side, (await _at_once(idle))[0])
            again.add(side, statistics.median([await _asked(agent) for agent in idle]))
            side.free_worker()
            await _import(worked, events)
            await side.restart()
            busy.add(side, (await _at_once(worked))[0])
            await asyncio.gather(*[side.forget(agent.http, agent.session) for part in some for agent in part])
            await side.idle()
            setting.say(f"imported, round {number + 1} of {rounds}, {side.name}")
    return [written, alone, told, still, busy, again]


def _life(setting: Setting, first: int, events: int) -> Life:
    return a_life(setting.recordings, first, setting.ask.form, events=events)


async def _newcomers(setting: Setting, side: Side, lives: Sequence[Life]) -> list[Agent]:
    name = setting.fresh("imported")
    return [Agent(side, await Http.connect(side.port), f"{name}-{number}", [life]) for number, life in enumerate(lives)]


async def _import(agents: Sequence[Agent], events: int) -> list[float]:
    """Post whole sessions, some at a time; the time of each request, in ms."""
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


async def _asked(agent: Agent) -> float:
    """A context's time, in ms."""
    begun = time.perf_counter()
    await agent.ask(Times())
    return (time.perf_counter() - begun) * 1e3


async def _at_once(agents: Sequence[Agent]) -> tuple[float, list[float]]:
    """The contexts of all asked for in the same moment: until the last was there, and each; in ms."""
    begun = time.perf_counter()
    times = await asyncio.gather(*map(_asked, agents))
    return (time.perf_counter() - begun) * 1e3, list(times)
