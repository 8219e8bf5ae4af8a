"""Servers that are killed while contexts are made: with idempotency keys every recorded call is answered."""

import asyncio
from collections import Counter

import pytest

from tests.acceptance.conftest import SECONDS_MAX, Commands
from tests.support.acknowledged import Agent, check_calls, event_ids, patient_client
from tests.support.clusters import free_port

AGENTS = 12
KILLS = 8
ROUNDS = 3
"""Acknowledged calls of each agent between two kills."""


@pytest.mark.slow  # tests/contract/events/test_idempotency.py has the same without kills
async def test_every_recorded_call_was_answered_when_the_server_is_killed_again_and_again(
    commands: Commands, database_url: str
) -> None:
    settings = {"DATABASE_URL": database_url, "PORT": str(free_port())}
    server = await commands.start("api", **settings)
    stop = asyncio.Event()
    async with patient_client(await server.url()) as http:
        agents = [Agent(http, f"agent{number}") for number in range(AGENTS)]
        for agent in agents:
            await agent.begin()
        working = [asyncio.create_task(agent.live(stop, pause=0.0)) for agent in agents]
        async with asyncio.timeout(SECONDS_MAX):
            for kill in range(1, KILLS + 1):
                while min(len(agent.calls) for agent in agents) < kill * ROUNDS:
                    await asyncio.wait(working, timeout=0.01)
                await server.kill()
                server = await commands.start("api", **settings)
                await server.url()
            stop.set()
            await asyncio.gather(*working)
        for agent in agents:
            assert await event_ids(http, agent.session) == agent.events
            recorded = Counter(await check_calls(http, agent.session, agent.calls, agent.reported))
            assert recorded == Counter(agent.calls.keys()), agent.session
    assert (await server.stop())[0] == 0
