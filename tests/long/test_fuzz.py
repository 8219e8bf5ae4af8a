"""More than 10,000 requests generated from the document and 5,000 hostile ones, with every kind of key."""

import asyncio

import pytest

from tests.contract.http.test_fuzz import CALLERS, fuzzing

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("name", "api_key", "sent"), CALLERS)
async def test_ten_thousand_from_the_document(
    database_url: str, name: str, api_key: str | None, sent: str | None
) -> None:
    async with fuzzing(database_url, api_key, sent) as fuzz:
        await asyncio.to_thread(fuzz.send_generated, 40)
        print(name, fuzz.cases, dict(fuzz.counts))
        assert fuzz.cases >= 2_500


@pytest.mark.parametrize(("name", "api_key", "sent"), CALLERS)
async def test_five_thousand_hostile(database_url: str, name: str, api_key: str | None, sent: str | None) -> None:
    async with fuzzing(database_url, api_key, sent) as fuzz:
        for seed in range(5):
            await asyncio.to_thread(fuzz.send_hostile, 300, seed)
        print(name, fuzz.cases, dict(fuzz.counts))
        assert fuzz.cases >= 1_250
