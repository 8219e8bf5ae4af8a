"""Metrics of the workers' queue."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.runtime.settings import Settings
from app.store.engine import Database
from tests.conftest import serving


async def queue(client: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    """Return the samples about jobs by name and label values."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name.removeprefix("palimpsest_"), *sample.labels.values()): sample.value
        for family in families
        if family.name.startswith("palimpsest_jobs")
        for sample in family.samples
    }


async def test_metrics_count_waiting_overdue_running_and_dead_jobs(
    client: httpx.AsyncClient, database: Database
) -> None:
    names = [("jobs", "waiting"), ("jobs", "running"), ("jobs", "dead"), ("jobs_overdue",), ("jobs_overdue_seconds",)]
    nothing = {(name, kind, *state): 0.0 for name, *state in names for kind in ("compact", "deliver", "erase")}
    assert await queue(client) == nothing
    await client.put("/v1/sessions/s", json={})
    assert (await client.post("/v1/sessions/s/compactions", json={})).status_code == 202
    await database.execute("UPDATE pgqueuer SET execute_after = now() - interval '90 seconds'")
    found = await queue(client)
    overdue = found[("jobs_overdue_seconds", "compact")]
    waiting = {("jobs", "compact", "waiting"): 1, ("jobs_overdue", "compact"): 1}
    assert found == {**nothing, **waiting, ("jobs_overdue_seconds", "compact"): overdue}
    assert overdue >= 90
    await database.execute("UPDATE pgqueuer SET status = 'picked'")
    assert await queue(client) == {**nothing, ("jobs", "compact", "running"): 1}
    for dead in ("heartbeat = now() - interval '6 minutes'", "status = 'failed', heartbeat = now()"):
        await database.execute(f"UPDATE pgqueuer SET {dead}")
        assert await queue(client) == {**nothing, ("jobs", "compact", "dead"): 1}


async def test_metrics_work_without_the_database() -> None:
    away = "postgresql+asyncpg://nobody@127.0.0.1:9/nothing"
    async with serving(Settings(), away) as url, httpx.AsyncClient(base_url=url) as client:
        assert await queue(client) == {}
        assert "palimpsest_http_requests_total" in (await client.get("/metrics")).text
