"""The dashboard and the alert rules in a real Prometheus (Debian's package) that scrapes a real server."""

import asyncio
import math
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from app.store.engine import Database
from tests.acceptance.conftest import Commands
from tests.contract.conftest import _provider as _provider  # that the next one resets
from tests.contract.conftest import provider as provider  # the stand-in behind the gateway
from tests.support import deployed
from tests.support.metered import run_scenario
from tests.support.provider import Provider
from tests.support.receiver import receiving

ABSENT = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
WHY = f"{' and '.join(ABSENT)} not found: apt-get install --no-install-recommends prometheus"
pytestmark = [pytest.mark.wing("telemetry"), pytest.mark.monitoring, pytest.mark.skipif(bool(ABSENT), reason=WHY)]
SECONDS_MAX = 120
NOBODY_WAITS = {"Waiting for a connection, 99th percentile A"}
"""Panels that may be empty in this run: a quantile without samples is no number."""
INTERVAL = "1m"
"""The value of Grafana's `$__rate_interval`."""


def promtool(*arguments: str) -> str:
    """Run promtool; return its output. Fails unless it succeeds."""
    done = subprocess.run(["promtool", *arguments], cwd=deployed.PROMETHEUS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_and_the_rules_are_good() -> None:
    said = promtool("check", "config", "prometheus.yml")
    assert "1 rule files found" in said and f"{len(deployed.alerts())} rules found" in said


def test_each_alert_fires_on_its_condition_only() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_a_broken_rule_would_be_seen(tmp_path: Path) -> None:
    """The rules' unit tests can fail: they do with another threshold."""
    rules = (deployed.PROMETHEUS / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(
        rules.replace("(palimpsest_jobs_overdue_seconds) > 300", "(palimpsest_jobs_overdue_seconds) > 30000")
    )
    shutil.copy(deployed.PROMETHEUS / "alerts_test.yml", tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0 and "PalimpsestJobsOverdue" in done.stdout + done.stderr


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def query(self, expr: str) -> list[float]:
        """Return the current values of all series of an expression."""
        answer = await self._http.get("/api/v1/query", params={"query": expr})
        said: dict[str, Any] = answer.json()
        assert said["status"] == "success", (expr, said)
        return [float(one["value"][1]) for one in said["data"]["result"]]

    async def until(self, expr: str) -> None:
        """Return once an expression has a result, that is after a scrape of its metrics."""
        async with asyncio.timeout(SECONDS_MAX):
            while not await self.query(expr):  # noqa: ASYNC110 - Prometheus tells nobody
                await asyncio.sleep(0.2)

    async def rules(self) -> dict[str, str]:
        """Return the health of every rule, by name."""
        said = (await self._http.get("/api/v1/rules")).json()
        return {rule["name"]: rule["health"] for group in said["data"]["groups"] for rule in group["rules"]}


@asynccontextmanager
async def prometheus(target: str, folder: Path) -> AsyncIterator[Prometheus]:
    """Run Prometheus with our example configuration, scraping the target every second."""
    config = yaml.safe_load((deployed.PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(deployed.PROMETHEUS / "alerts.yml", folder)
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        "--config.file=prometheus.yml",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{await _port(process.pid)}", timeout=30) as http:
            async with asyncio.timeout(SECONDS_MAX):
                while (await http.get("/-/ready")).status_code != 200:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.1)
            yield Prometheus(http)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await said


async def _port(pid: int) -> int:
    """Return the port on which a process listens."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            ports = [one.laddr.port for one in psutil.Process(pid).net_connections("tcp") if one.status == "LISTEN"]
            if ports:
                return int(ports[0])
            await asyncio.sleep(0.1)


@pytest.mark.wing("gateway")
@pytest.mark.wing("webhooks")
async def test_every_panel_has_data_and_no_alert_fires_for_nothing(
    commands: Commands, database_url: str, database: Database, provider: Provider, tmp_path: Path
) -> None:
    settings = {"DATABASE_URL": database_url, "GATEWAY_ANTHROPIC_URL": provider.url}
    worker = await commands.start("worker", DATABASE_URL=database_url)
    api = await commands.start("api", **settings)
    url = await api.url()
    async with (
        receiving() as receiver,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
        prometheus(url.removeprefix("http://"), tmp_path) as server,
    ):
        await run_scenario(http, database, receiver, "first")
        await server.until('palimpsest_gateway_calls_total{mode="passthrough"} == 1')
        await run_scenario(http, database, receiver, "second")
        await server.until('palimpsest_gateway_calls_total{mode="passthrough"} == 2')
        found = {
            query.where: await server.query(query.expr.replace("$__rate_interval", INTERVAL))
            for query in deployed.dashboard()
        }
        empty = [where for where, values in found.items() if not values]
        assert empty == []
        unknown = {where for where, values in found.items() if all(math.isnan(value) for value in values)}
        assert unknown <= NOBODY_WAITS
        assert sum(found["Contexts by outcome A"]) > 0
        assert sum(found["Tokens evicted by reducer A"]) > 0
        assert sum(found["Summaries by outcome A"]) > 0
        for rule in deployed.alerts():
            await server.query(rule["expr"])
        names = {rule["alert"] for rule in deployed.alerts()}
        assert await server.rules() == dict.fromkeys(names, "ok")
        assert await server.query('ALERTS{alertname="PalimpsestDown"}') == []
        await api.stop()
        await server.until('ALERTS{alertname="PalimpsestDown", alertstate="pending"}')
    assert (await worker.stop())[0] == 0
