"""Sessions in which nothing was due are not examined again at once, and get their summaries at the same appends."""

from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

import httpx
import pytest

from app import tokenizers
from app.resources.summaries.next_step import StepPlanner
from app.resources.summaries.service import Compaction
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.store.ids import session_ref
from app.tenants import DEFAULT_TENANT
from app.tokenizers import Counting

POLICY: Final = {
    "window_tokens": 6_000,
    "evict": "on_pressure",
    "cut": {"keep_tokens": 1_000, "split_turn": "prefix"},
    "summarize": {"chunk_tokens": 600, "max_tokens": 150},
}
TEXT: Final = "The gauge of the northern harbour was read and written down. "


@pytest.fixture
async def compaction(database: Database) -> AsyncIterator[Compaction]:
    settings = Settings()
    made = wiring.compaction(settings, database, Counting(tokenizers.load(settings.tiktoken_cache_dir)))
    yield made
    await made.aclose()


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The sessions whose log was examined, once for each time."""
    found: list[UUID] = []
    real = StepPlanner.load_basis

    async def load_basis(self: StepPlanner, ref: Any, *others: Any) -> Any:
        found.append(ref.session_id)
        return await real(self, ref, *others)

    monkeypatch.setattr(StepPlanner, "load_basis", load_basis)
    return found


async def append(client: httpx.AsyncClient, session: str, sentences: int) -> None:
    event = {"type": "user.message", "content": TEXT * sentences}
    answer = await client.post(f"/v1/sessions/{session}/events", json={"events": [event]})
    assert answer.status_code == 201, answer.text


async def run_jobs(database: Database, compaction: Compaction, session: str) -> int:
    """Run the queued jobs of a session as a worker does; return their number."""
    ref = session_ref(DEFAULT_TENANT, session)
    jobs = await database.fetch(
        "UPDATE pgqueuer SET status = 'picked' WHERE dedupe_key = :key RETURNING id", key=f"compact:{ref.session_id}"
    )
    for job in jobs:
        await compaction.run_job(ref, job["id"])
        await database.execute("DELETE FROM pgqueuer WHERE id = :id", id=job["id"])
    return len(jobs)


async def spans(client: httpx.AsyncClient, session: str) -> list[tuple[int, int]]:
    found = (await client.get(f"/v1/sessions/{session}/summaries")).json()["items"]
    return [(one["from_seq"], one["to_seq"]) for one in found]


async def test_summaries_are_written_at_the_same_appends(
    client: httpx.AsyncClient, database: Database, compaction: Compaction, examined: list[UUID]
) -> None:
    for session in ("known", "new"):
        await client.put(f"/v1/sessions/{session}", json={"policy": POLICY})
    jobs = 0
    for number in range(90):
        for session in ("known", "new"):
            await append(client, session, 1 + number * 7 % 12)
        jobs += await run_jobs(database, compaction, "known")
        settings = Settings()
        forgetful = wiring.compaction(settings, database, Counting(tokenizers.load(settings.tiktoken_cache_dir)))
        await run_jobs(database, forgetful, "new")
        await forgetful.aclose()
        assert await spans(client, "known") == await spans(client, "new")
    by_session = [examined.count(session_ref(DEFAULT_TENANT, session).session_id) for session in ("known", "new")]
    assert len(await spans(client, "known")) > 3 and jobs > 20
    assert by_session[0] < by_session[1] * 2 / 3


@pytest.mark.parametrize("change", ["policy", "view", "decision", "request"])
async def test_a_changed_session_is_examined_again(
    client: httpx.AsyncClient, database: Database, compaction: Compaction, examined: list[UUID], change: str
) -> None:
    await client.put("/v1/sessions/s", json={"policy": POLICY})
    while not examined:
        await append(client, "s", 2)
        await run_jobs(database, compaction, "s")
    await append(client, "s", 1)
    await run_jobs(database, compaction, "s")
    assert len(examined) == 1
    if change == "policy":
        await client.put("/v1/sessions/s", json={"policy": {**POLICY, "soft_ratio": 0.7}})
    elif change == "view":
        assert (
            await client.get("/v1/sessions/s/context?view=title&max_tokens=3000&format=anthropic")
        ).status_code == 200
    elif change == "decision":
        await client.patch("/v1/sessions/s/visibility", json={"pin": [1]})
    else:
        await client.post("/v1/sessions/s/compactions", json={})
    await append(client, "s", 1)
    await run_jobs(database, compaction, "s")
    assert len(examined) > 1
