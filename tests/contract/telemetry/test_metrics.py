"""Metrics after a short scenario: every metric named by the dashboard, the alerts and the page exists and is right."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.runtime import wiring
from app.runtime.settings import Settings
from app.runtime.wing import find_placement
from app.store.engine import Database
from app.worker import run
from tests.conftest import serving
from tests.support import deployed
from tests.support.databases import migrated
from tests.support.gateways import settings
from tests.support.metered import Scrape, run_scenario, scrape
from tests.support.provider import Provider
from tests.support.receiver import receiving

pytestmark = [pytest.mark.wing("webhooks"), pytest.mark.wing("gateway"), pytest.mark.wing("telemetry")]
PAGE = Path(__file__).parents[3] / "docs" / "operations" / "watching.md"
OUTCOMES = ("held", "epoch", "retried", "infeasible", "refused")


@pytest.fixture(scope="module")
async def scrapes(postgres: str, template: str, _provider: Provider) -> AsyncIterator[tuple[Scrape, Scrape]]:
    """The metrics before and after the scenario."""
    _provider.reset()
    stop = asyncio.Event()
    async with migrated(postgres, template) as database_url:
        database = Database(database_url, pool_size=4, role=None, find_placement=find_placement)
        running = asyncio.create_task(run(database_url, stop, wiring.worker_work(Settings())))
        async with (
            receiving() as receiver,
            serving(settings(_provider), database_url) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            before = await scrape(http)
            await run_scenario(http, database, receiver, "s")
            after = await scrape(http)
        stop.set()
        await running
        await database.close()
        yield before, after


async def test_metrics_count_what_happened(scrapes: tuple[Scrape, Scrape]) -> None:
    before, after = scrapes

    def more(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert all(more("palimpsest_contexts_total", outcome=outcome) >= 1 for outcome in OUTCOMES)
    assert more("palimpsest_contexts_total", outcome="retried") == 1
    assert more("palimpsest_contexts_total", outcome="refused", format="openai") == 1
    made = sum(more("palimpsest_contexts_total", outcome=one) for one in ("held", "read", "epoch", "retried"))
    assert made == more("palimpsest_context_tokens_count") == more("palimpsest_context_fill_ratio_count") == 14
    opened = more("palimpsest_contexts_total", outcome="epoch") + 1
    assert more("palimpsest_epochs_total") == opened
    assert more("palimpsest_epochs_total", cause="start") == more("palimpsest_epochs_total", cause="overflow") == 1
    assert more("palimpsest_evicted_events_total") > 0
    assert more("palimpsest_evicted_tokens_total") > 1_000
    assert more("palimpsest_outcomes_total", outcome="answered") == 12
    assert more("palimpsest_outcomes_total", outcome="overflow") == 1
    summaries = {"summarizer": "extractive", "outcome": "live"}
    assert after.total("palimpsest_summaries_total", **summaries) >= 1
    assert after.total("palimpsest_summary_lag_seconds_count") == after.total("palimpsest_summaries_total")
    assert after.total("palimpsest_webhook_attempts_total", outcome="delivered") >= 1
    assert more("palimpsest_gateway_calls_total", provider="anthropic", mode="passthrough") == 1
    assert after.total("palimpsest_pool_limit_connections") == Settings().pool_size
    assert after.total("palimpsest_pool_connections") >= 1


@pytest.mark.wing("webhooks")
@pytest.mark.wing("ledger")
async def test_metrics_count_cache_reads(scrapes: tuple[Scrape, Scrape]) -> None:
    before, after = scrapes
    read, expected, whole = (
        after.total(f"palimpsest_cache_{name}_tokens_total", profile="claude")
        - before.total(f"palimpsest_cache_{name}_tokens_total", profile="claude")
        for name in ("read", "expected_read", "input")
    )
    assert 0 < expected < read == whole - 12 * 50


async def test_dashboard_alerts_and_page_name_existing_metrics(scrapes: tuple[Scrape, Scrape]) -> None:
    after = scrapes[1]
    queries = [*deployed.dashboard(), *(deployed.Query(one["alert"], one["expr"]) for one in deployed.alerts())]
    assert len(queries) > 40
    unknown = {query.where: query.metrics - after.samples for query in queries if query.metrics - after.samples}
    assert unknown == {}
    table = dict(re.findall(r"^\| `(palimpsest_\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert table == after.ours, "the table of docs/operations/watching.md"
    shown = set().union(*(query.metrics for query in queries))
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {name for name in after.ours if name not in stems} == set(), "no panel shows it"


async def test_labels_have_only_bounded_values(scrapes: tuple[Scrape, Scrape]) -> None:
    labels = {
        label
        for name, family in scrapes[1].families.items()
        if name.startswith("palimpsest_")
        for sample in family.samples
        for label in sample.labels
    }
    bounded = {
        "method",
        "route",
        "status",
        "outcome",
        "format",
        "cause",
        "reducer",
        "set",
        "profile",
        "provider",
        "mode",
        "rule",
    }
    assert labels == bounded | {"state", "kind", "summarizer", "answered_by", "le"}


def test_every_alert_has_its_section_and_its_unit_tests() -> None:
    page = PAGE.read_text(encoding="utf-8")
    tests = (deployed.PROMETHEUS / "alerts_test.yml").read_text()
    names = [rule["alert"] for rule in deployed.alerts()]
    assert re.findall(r"^### (Palimpsest\w+)$", page, re.MULTILINE) == names
    for rule in deployed.alerts():
        name = rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/operations/watching.md#{name.lower()}"
        assert " ".join(rule["annotations"]["description"].split()) in " ".join(page.split()), name
        assert f"- name: {name} fires" in tests and f"- name: {name} is silent" in tests
