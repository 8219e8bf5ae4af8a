"""The memory of an API process under many sessions is bounded."""

import asyncio
from collections.abc import Iterator, Sequence

import httpx
import psutil
import pytest

from tests.acceptance.conftest import Commands

pytestmark = pytest.mark.long

SESSIONS = 40
MEGABYTE = 1_000_000
APPENDED = 8 * MEGABYTE
"""Bytes appended to each session after its context; views held in memory are limited to a twentieth of the total."""
GROWTH_MAX = 120 * MEGABYTE
MANY_SESSIONS = 2_000
SMALL_EVENTS = 40
GROWTH_OF_MANY_MAX = 40 * MEGABYTE
"""Permitted growth from the thousandth session to the last."""


async def test_appends_after_a_context_do_not_accumulate_in_memory(commands: Commands, database_url: str) -> None:
    api = await commands.start("api", DATABASE_URL=database_url)
    process = psutil.Process(api.process.pid)
    async with httpx.AsyncClient(base_url=await api.url(), timeout=60) as client:
        for number in range(SESSIONS):
            await append_text(client, number, "begun")
            answer = await client.post(f"/v1/sessions/s{number}/context", json={"max_tokens": 100_000})
            assert answer.status_code == 200
        await append_text(client, SESSIONS, "words " * (APPENDED // 6))  # the memory of one large body is no growth
        before = process.memory_info().rss
        for number in range(SESSIONS):
            await append_text(client, number, "words " * (APPENDED // 6))
        assert process.memory_info().rss - before < GROWTH_MAX


async def test_thousands_of_sessions_of_small_events_do_not_accumulate_in_memory(
    commands: Commands, database_url: str
) -> None:
    """Each session is appended to after its context, and its context requested again, as by an agent."""
    api = await commands.start("api", DATABASE_URL=database_url)
    process = psutil.Process(api.process.pid)
    grown: list[int] = []
    async with httpx.AsyncClient(base_url=await api.url(), timeout=60) as client:
        for numbers in batches(range(MANY_SESSIONS), MANY_SESSIONS // 8):
            for together in batches(numbers, 8):
                await asyncio.gather(*(converse(client, number) for number in together))
            grown.append(process.memory_info().rss)
    settled, last = grown[3], grown[-1]
    assert last - settled < GROWTH_OF_MANY_MAX, [size // MEGABYTE for size in grown]


async def converse(client: httpx.AsyncClient, number: int) -> None:
    """Request three contexts of a session, with a batch of small events before each and after the last."""
    for batch in range(4):
        events = [{"type": "user.message", "content": f"batch {batch}, message {n}"} for n in range(SMALL_EVENTS)]
        answer = await client.post(f"/v1/sessions/m{number}/events", json={"events": events})
        assert answer.status_code == 201, answer.text
        if batch < 3:
            answer = await client.post(f"/v1/sessions/m{number}/context", json={"max_tokens": 100_000})
            assert answer.status_code == 200, answer.text


async def append_text(client: httpx.AsyncClient, number: int, text: str) -> None:
    events = [{"type": "user.message", "content": part} for part in parts(text)]
    answer = await client.post(f"/v1/sessions/s{number}/events", json={"events": events})
    assert answer.status_code == 201, answer.text


def batches(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def parts(text: str) -> list[str]:
    return [text[start : start + MEGABYTE] for start in range(0, len(text), MEGABYTE)]
