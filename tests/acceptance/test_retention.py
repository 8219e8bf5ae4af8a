"""The commands of docs/operations/retention.md against a server and a worker, as an operator types them."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx
import pytest

from app import worker
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database, acting_for
from app.tenants import DEFAULT_TENANT, Tenants
from app.wings.retention.service import DataRetention
from tests.conftest import serving
from tests.support.clusters import Page
from tests.support.processes import outcome, palimpsest

pytestmark = pytest.mark.slow
SECONDS_MAX = 120
SESSIONS = {"ann-1": "ann", "ann-2": "ann", "bob-1": "bob"}


async def test_the_page_erases_the_sessions_it_names(
    database_url: str, database: Database, application: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))
    key = (await Tenants(database, None).create_key("default", "k", ["admin"])).secret
    stop = asyncio.Event()
    working = asyncio.create_task(worker.run(database_url, stop, wiring.worker_work(Settings())))
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, headers={"Authorization": f"Bearer {key}"}) as http,
    ):
        for name, user in SESSIONS.items():
            assert (await http.put(f"/v1/sessions/{name}", json={"metadata": {"user": user}})).is_success
        values: Mapping[str, object] = {
            "URL": url,
            "KEY": key,
            "DATABASE": database_url,
            "ERASURE": "unknown",
            "TENANT": "unknown",
        }
        page = Page("retention.md", values)
        assert json.loads(await page.run("put", as_current_user=True))["idle_days"] == 180
        lines = (await page.run("set", as_current_user=True)).splitlines()
        assert {"session_days  365", "idle_days  180", "call_days  30", "change_days  no rule"} <= set(lines)

        await database.execute(
            "UPDATE sessions SET created_at = now() - interval '400 days' WHERE external_id = 'bob-1'"
        )
        told: dict[str, Any] = json.loads(await page.run("preview", as_current_user=True))
        printed = (await page.run("dry_run", as_current_user=True)).splitlines()
        assert [one["id"] for one in told["items"]] == ["bob-1"]
        assert printed[0].startswith("age  1  from ") and printed[-1].startswith("session bob-1  age  created ")
        with acting_for(DEFAULT_TENANT):
            assert await DataRetention(application).apply(DEFAULT_TENANT) == {"age": 1}

        assert json.loads(await page.run("preview_erasure", as_current_user=True))["sessions"] == 2
        begun = json.loads(await page.run("erase", as_current_user=True))
        async with asyncio.timeout(SECONDS_MAX):
            while (done := (await http.get(f"/v1/erasures/{begun['id']}")).json())["state"] != "done":
                pass
        after = Page("retention.md", {**values, "ERASURE": begun["id"], "TENANT": done["tenant_id"]})
        assert json.loads(await after.run("receipt", as_current_user=True)) == done
        erased = [one["session_id"] for one in json.loads(await after.run("erased", as_current_user=True))["items"]]
        digest, session_id = (await after.run("check", as_current_user=True)).split()
        assert digest == done["filter_sha256"] and session_id in erased and len(erased) == 2
        assert (await http.get("/v1/sessions")).json()["items"] == []
        assert page.left & after.left == set(), "steps that were not run"
    stop.set()
    await working


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--tenant", "nobody"), "there is no tenant 'nobody'"),
        (("--set", "idle_days"), "'idle_days' must have the form idle_days=180"),
        (("--set", "days=3"), "'days=3' must have the form idle_days=180"),
        (("--set", "idle_days=-3"), "'idle_days=-3' must have the form idle_days=180"),
        (("--set", "delivery_days=31"), "delivery_days must be from 0 to 30"),
    ],
)
async def test_a_bad_rule_is_one_line_and_changes_nothing(
    database_url: str, database: Database, given: tuple[str, ...], said: str
) -> None:
    done = await outcome(await palimpsest("retention", *given, settings={"DATABASE_URL": database_url}))
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert await database.fetch("SELECT FROM retention") == []
