"""The commands of docs/operations/sealing.md, on a database with an active tenant."""

import httpx
import pytest

from app.runtime.settings import Settings
from app.store import dsn
from tests.conftest import serving
from tests.support.clusters import Page

pytestmark = pytest.mark.wing("sealing")


async def test_the_page(database_url: str) -> None:
    page = Page("sealing.md", {"PALIMPSEST_DATABASE_URL": dsn.for_asyncpg(database_url), "TENANT": "default"})
    first = (await page.run("key", as_current_user=True)).strip()
    settings = Settings.model_validate({"encryption_key": first})
    event = {"events": [{"type": "user.message", "content": "hello"}]}
    async with serving(settings, database_url) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
        assert (await http.post("/v1/sessions/s/events", json=event)).is_success
        assert (await page.run("list", as_current_user=True)).startswith("default  since ")
        second = (await page.run("key", as_current_user=True)).strip()
        keys = f"PALIMPSEST_ENCRYPTION_KEY={second},{first}"
        wrapped = await page.run("rewrap", ("palimpsest contents", f"{keys} palimpsest contents"), as_current_user=True)
        assert wrapped == "wrapped the keys of 1 tenants\n"
    settings = Settings.model_validate({"encryption_key": second})
    async with serving(settings, database_url) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
        assert (await http.get("/v1/sessions/s/events")).json()["items"][0]["content"] == "hello"
        await page.run("drop", as_current_user=True)
    async with serving(settings, database_url) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
        assert (await http.get("/v1/sessions/s/events")).status_code == 410
    assert page.left == set()
