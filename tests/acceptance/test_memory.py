"""An API process as many sessions use it: what it keeps of them in memory has an end."""

import httpx
import psutil
import pytest

from tests.acceptance.conftest import Commands

pytestmark = pytest.mark.long

SESSIONS = 40
MEGABYTE = 1_000_000
APPENDED = 8 * MEGABYTE
"""To each session, after its context was asked for; all that may be held is a twentieth of all of it."""
GROWTH_MAX = 120 * MEGABYTE


async def test_what_is_appended_after_a_context_does_not_pile_up(commands: Commands, database_url: str) -> None:
    api = await commands.start("api", DATABASE_URL=database_url)
    process = psutil.Process(api.process.pid)
    async with httpx.AsyncClient(base_url=await api.url(), timeout=60) as client:
        for number in range(SESSIONS):
            await appended(client, number, "begun")
            answer = await client.post(f"/v1/sessions/s{number}/context", json={"max_tokens": 100_000})
            assert answer.status_code == 200
        await appended(client, SESSIONS, "words " * (APPENDED // 6))  # what one large body takes is no growth
        before = process.memory_info().rss
        for number in range(SESSIONS):
            await appended(client, number, "words " * (APPENDED // 6))
        assert process.memory_info().rss - before < GROWTH_MAX


async def appended(client: httpx.AsyncClient, number: int, text: str) -> None:
    events = [{"type": "user.message", "content": part} for part in parts(text)]
    answer = await client.post(f"/v1/sessions/s{number}/events", json={"events": events})
    assert answer.status_code == 201, answer.text


def parts(text: str) -> list[str]:
    return [text[start : start + MEGABYTE] for start in range(0, len(text), MEGABYTE)]
