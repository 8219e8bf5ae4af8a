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
    alone = Row(f"first context of a session of {events:,} events, in a new process")
    done, busy = Row("16 of them at once: all answered, the worker done", ".0f"), Row("... the worker at work", ".0f")
    again = Row("asked again, p50")
    written = Row("an import's append of 500 events, p50", ".0f")
    for number in range(rounds):
        for side in setting.sides:
            lives = [_life(setting, AGENTS * number + one, events) for one in range(AGENTS)]
            one, first, second = ([setting.fresh("imported") for _ in some] for some in (lives[:1], lives, lives))
            times = await _import(side, one, lives[:1], events) + await _import(side, first, lives, events)
            written.add(side, statistics.median(times))
            await side.idle()
            await side.restart()
            agents = await _strangers(side, [*one, *first], [lives[0], *lives])
            alone.add(side, await _asked(agents[0]))
            await side.restart()
            done.add(side, (await _at_once(agents[1:]))[0])
            again.add(side, statistics.median([await _asked(agent) for agent in agents]))
            await _import(side, second, lives, events)
            await side.restart()
            busy.add(side, (await _at_once(await _strangers(side, second, lives)))[0])
            await side.idle()
            setting.say(f"imported, round {number + 1} of {rounds}, {side.name}")
    return [alone, done, busy, again, written]


def _life(setting: Setting, first: int, events: int) -> Life:
    return a_life(setting.recordings, first, setting.ask.form, events=events)


async def _import(side: Side, sessions: Sequence[str], lives: Sequence[Life], events: int) -> list[float]:
    """Post whole sessions; the time of each request, in ms."""
    times: list[float] = []
    waiting = list(zip(sessions, lives, strict=True))

    async def work() -> None:
        http = await Http.connect(side.port)
        while waiting:
            session, life = waiting.pop()
            await side.open(http, session, life)
            for messages in life.batches(events):
                begun = time.perf_counter()
                await side.append(http, session, messages)
                times.append((time.perf_counter() - begun) * 1e3)
        http.close()

    await asyncio.gather(*[work() for _ in range(IMPORTING)])
    return times


async def _strangers(side: Side, sessions: Sequence[str], lives: Sequence[Life]) -> list[Agent]:
    """Agents of sessions that others made."""
    return [
        Agent(side, await Http.connect(side.port), session, [life])
        for session, life in zip(sessions, lives, strict=True)
    ]


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
