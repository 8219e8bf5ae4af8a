"""The scene of an API that serves very many sessions: the resident memory of its process."""

import asyncio
from collections.abc import Sequence
from typing import Final

from bench.agents.driver import STRIDE_STEPS, Agent, Times
from bench.agents.rows import Row
from bench.agents.setting import Setting
from bench.agents.sides import memory_mb
from bench.http import Http

AT_A_TIME: Final = 16
PARTS: Final = 4
"""Memory is measured after each of these parts of the requests."""
FIRST_CALLS: Final = 3 * STRIDE_STEPS
"""Calls that a session begins with, so that its contexts have some size."""


async def measure_memory(setting: Setting, sessions: int, requests: int) -> list[Row]:
    """Make calls for all sessions in turn up to `requests` requests; return the process's resident memory in MB."""
    start = Row("MB right after a start", ".0f")
    parts = [Row(f"MB after {requests * part // PARTS:,} requests", ".0f") for part in range(1, PARTS + 1)]
    size = Row("KB a context", ".0f")
    for side in setting.sides:
        await side.restart()
        start.add(side, memory_mb(side.pids()["api"]))
        name, lives = setting.new_name("many"), setting.lives
        https = [await Http.connect(side.port) for _ in range(AT_A_TIME)]
        groups = [
            [
                Agent(side, http, f"{name}-{number}", lives, number % len(lives))
                for number in range(first, sessions, AT_A_TIME)
            ]
            for first, http in enumerate(https)
        ]
        times = Times()
        for row, part in zip(parts, range(1, PARTS + 1), strict=True):
            while 2 * len(times.contexts) < requests * part // PARTS:
                await asyncio.gather(*[_call(group, times) for group in groups])
            row.add(side, memory_mb(side.pids()["api"]))
            setting.say(f"memory, {side.name}: {2 * len(times.contexts):,} requests")
        size.add(side, times.context_bytes / len(times.contexts) / 1024)
        for http in https:
            http.close()
        await side.idle()
    return [start, *parts, size]


async def _call(agents: Sequence[Agent], times: Times) -> None:
    """Make one call for each agent in turn."""
    for agent in agents:
        if agent.step:
            await agent.make_calls(1, times)
        else:
            await agent.side.open(agent.http, agent.session, agent.lives[agent.life])
            await agent.advance(FIRST_CALLS, times)
