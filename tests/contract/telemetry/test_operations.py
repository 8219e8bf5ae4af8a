"""Metrics of the workers' queue."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.runtime.settings import Settings
from app.store import jobs
from app.store.engine import Database
from app.wings.telemetry import SHARED_METRICS
from app.wings.telemetry.routes import process_metrics
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
    nothing = {(name, kind, *state): 0.0 for name, *state in names for kind in jobs.KINDS}
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


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
async def test_without_keys_other_sites_pages_get_no_metrics(
    refusing: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await refusing.get("/metrics", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/not-local")


def test_gauges_of_ended_processes_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for name in ("gauge_livesum", "gauge_livemax", "counter"):
        for pid in (ended.pid, os.getpid()):
            (tmp_path / f"{name}_{pid}.db").touch()
    monkeypatch.setenv(SHARED_METRICS, str(tmp_path))
    process_metrics()
    left = {path.stem for path in tmp_path.iterdir()}
    assert left == {f"{name}_{os.getpid()}" for name in ("gauge_livesum", "gauge_livemax", "counter")} | {
        f"counter_{ended.pid}"
    }
