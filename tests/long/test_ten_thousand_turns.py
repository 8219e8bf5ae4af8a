"""A session of ten thousand turns: the live summaries, and the summarizer's input, stay within bounds."""

import asyncio
import math

import httpx
import pytest

from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.worker import run as run_worker
from tests.conformance.agent import Agent
from tests.support.pooler import pooled

TURNS = 10_000
PER_APPEND = 250
WINDOW = 40_000
SECONDS_MAX = 900


@pytest.mark.long
async def test_live_summaries_grow_with_the_logarithm_and_reading_with_the_log(
    client: httpx.AsyncClient, database_url: str, database: Database
) -> None:
    agent = await Agent.begin(client, {"window_tokens": WINDOW})
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(database_url, stop, wiring.worker_work(pooled(Settings(), database_url))))
    live: dict[int, int] = {}
    shown: dict[int, int] = {}
    async with asyncio.timeout(SECONDS_MAX):
        for first in range(0, TURNS, PER_APPEND):
            await agent.post(*(event for turn in range(first, first + PER_APPEND) for event in turn_events(turn)))
            while await database.fetch("SELECT FROM pgqueuer WHERE entrypoint = 'compact'"):
                pass
            context = await agent.context()
            answer = await client.get("/v1/sessions/s/summaries", params={"live": True, "limit": 1000})
            live[first + PER_APPEND] = len(answer.json()["items"])
            shown[first + PER_APPEND] = context["tokens"]["by_source"]["summaries"]
    stop.set()
    await running
    proof = (await client.get("/v1/sessions/s/coverage")).json()
    assert proof["ok"], proof["faults"]
    row = await database.fetchrow(
        "SELECT sum(c.tokens_read)::float8 AS read, max(s.tokens) AS tokens "
        "FROM compactions c JOIN sessions s USING (session_id)"
    )
    assert row is not None
    assert row["read"] <= 1.6 * row["tokens"]  # each event once, and the oldest summary again with every two new ones
    for turns in (1_000, 3_000, TURNS):
        assert live[turns] <= 3 * math.log2(turns)
        assert shown[turns] <= 0.75 * WINDOW
    assert live[TURNS] <= live[1_000] + 3 * math.log2(TURNS / 1_000)


def turn_events(turn: int) -> list[dict[str, str]]:
    """Return a turn of a question and an answer, about two hundred tokens."""
    about = f"module_{turn % 97} and the value {turn * 7 % 10_007} of run {turn}"
    return [
        {"type": "user.message", "content": f"Question {turn}: what becomes of {about}? " + "Please be exact. " * 8},
        {"type": "assistant.message", "content": f"Answer {turn}: {about} is kept. " + "It was written to disk. " * 14},
    ]
