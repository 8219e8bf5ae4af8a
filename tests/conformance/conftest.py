"""A worker that uses a fake summarizer, and readers of its summaries and runs."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from app import tokenizers
from app.providers import load_prompts
from app.resources.policies.service import Policies
from app.resources.summaries.service import Compaction
from app.resources.summaries.summarizing import Summarizing
from app.runtime import wing
from app.runtime.wing import find_placement
from app.tokenizers import Counting
from app.worker import Work, run
from tests.conformance.agent import WAIT_MS, Json
from tests.conftest import DEFAULTS
from tests.support.summarizers import Summarizers


@pytest.fixture
def model(fake_summarizers: Summarizers) -> Summarizers:
    return fake_summarizers


@pytest.fixture
async def worker(database_url: str, model: Summarizers) -> AsyncIterator[None]:
    """A worker on the test's database that uses the fake OpenAI."""
    async with running_worker(database_url, model):
        yield


@asynccontextmanager
async def running_worker(
    database_url: str,
    model: Summarizers,
    *,
    seconds: float = 30.0,
    breaker_seconds: float = 60.0,
    spend_tokens_max: int | None = None,
) -> AsyncIterator[None]:
    """Run a worker until the block ends.

    It waits up to `seconds` for a summary, makes no request for `breaker_seconds` after three failures, and spends at
    most `spend_tokens_max` in an hour.
    """
    from app.wings.summarizers.guard import GuardedSummarizer
    from app.wings.summarizers.openai import OpenAI

    client = OpenAI(model="stand-in-1", api_key="key-1", base_url=model.openai_url)
    guarded = GuardedSummarizer(
        client, clock=time.monotonic, breaker_seconds=breaker_seconds, spend_tokens_max=spend_tokens_max
    )
    summarizing = Summarizing({"openai": guarded}, load_prompts(), default="openai", timeout=seconds)
    counting = Counting(tokenizers.load(DEFAULTS.tiktoken_cache_dir))
    work = Work(
        lambda database: Compaction(database, counting, Policies(database), summarizing, 10**9),
        find_placement=find_placement,
        ciphers=lambda database: wing.ciphers(DEFAULTS, database),
    )
    stop = asyncio.Event()
    running = asyncio.create_task(run(database_url, stop, work))
    try:
        yield
    finally:
        stop.set()
        await running
        await guarded.aclose()


async def preset(client: httpx.AsyncClient, name: str, **summarize: object) -> Json:
    """Return a preset's document with changed `summarize` rules."""
    document: Json = (await client.get(f"/v1/policies/{name}")).json()["policy"]
    return {**document, "summarize": {**document.get("summarize", {}), **summarize}}


async def compact(client: httpx.AsyncClient, **asks: object) -> Json:
    """Request a compaction and return the finished run."""
    answer = await client.post("/v1/sessions/s/compactions", json={"wait_ms": WAIT_MS, **asks})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def runs(client: httpx.AsyncClient) -> list[Json]:
    """Return all compaction runs, newest first."""
    found: list[Json] = (await client.get("/v1/sessions/s/compactions")).json()["items"]
    return found


async def summary(client: httpx.AsyncClient, id: str) -> Json:
    """Return a summary with its text and digest."""
    answer = await client.get(f"/v1/sessions/s/summaries/{id}")
    answer.raise_for_status()
    found: Json = answer.json()
    return found


async def summaries(client: httpx.AsyncClient, *, live: bool = True) -> list[Json]:
    """Return the live summaries, or all, each with its text and digest, in order of creation."""
    items = (await client.get("/v1/sessions/s/summaries", params={"live": live})).json()["items"]
    return [await summary(client, item["id"]) for item in items]


async def live_summary(client: httpx.AsyncClient) -> Json:
    """Return the only live summary."""
    [found] = await summaries(client)
    return found


async def check_coverage(client: httpx.AsyncClient) -> list[Json]:
    """Return the coverage's runs after checking that each event is accounted for once."""
    coverage = (await client.get("/v1/sessions/s/coverage")).json()
    assert coverage["ok"], coverage["faults"]
    found: list[Json] = coverage["runs"]
    seqs = [seq for row in found for seq in range(row["from_seq"], row["to_seq"] + 1)]
    assert seqs == list(range(1, coverage["head"] + 1))
    return found
