"""The keyboard, live updates and the login, in chromium."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx
import pytest

from app.runtime.settings import Settings
from app.store.engine import Database
from tests.browser.sites import RECORDED, Site
from tests.conftest import serving
from tests.support.tenants import tenant

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.wing("pages")]


@pytest.fixture
async def page(site: Site, chromium: "Browser") -> "AsyncIterator[Page]":
    """A page of a browser at the site."""
    context = await chromium.new_context(base_url=site.url)
    yield await context.new_page()
    await context.close()


async def focused(page: "Page") -> str:
    """Return the text of the element that has the focus."""
    return str(await page.evaluate("document.activeElement.textContent.trim()"))


async def test_j_and_k_move_over_rows_and_a_slash_searches(page: "Page") -> None:
    await page.goto(f"/ui/sessions/{RECORDED}/events")
    rows = await page.locator("[data-row] th").all_inner_texts()
    found = []
    for key in "jjk":
        await page.keyboard.press(key)
        found.append(await focused(page))
    assert found == [rows[0], rows[1], rows[0]]
    await page.keyboard.press("/")
    await page.keyboard.type("jkd/")
    assert await page.get_by_label("Find an event").input_value() == "jkd/"


async def test_a_key_follows_the_links_to_neighbours(page: "Page") -> None:
    await page.goto(f"/ui/sessions/{RECORDED}/events/7")
    await page.keyboard.press("j")
    await page.wait_for_url("**/events/8")
    await page.keyboard.press("k")
    await page.wait_for_url("**/events/7")


async def test_the_tab_key_reaches_the_content_first(page: "Page") -> None:
    await page.goto("/ui/")
    await page.keyboard.press("Tab")
    assert await focused(page) == "Skip to the content"
    await page.keyboard.press("Enter")
    assert page.url.endswith("#main")


async def test_two_tenants_log_in_and_see_their_own_sessions(
    chromium: "Browser", database: Database, database_url: str
) -> None:
    keys = {name: (await tenant(database, name))[0] for name in ("acme", "other")}
    async with serving(Settings(), database_url) as url:
        for name, key in keys.items():
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, verify=False) as http:
                event = {"type": "user.message", "content": f"the secret of {name}"}
                await http.post(f"/v1/sessions/of-{name}/events", json={"events": [event]})
        for name, key in keys.items():
            context = await chromium.new_context(base_url=url)
            page = await context.new_page()
            await page.goto("/ui/")
            await page.get_by_label("Key").fill(key)
            await page.get_by_role("button", name="Log in").click()
            links = await page.locator("[data-row] th").all_inner_texts()
            assert links == [f"of-{name}"]
            await page.get_by_role("button", name="Log out").click()
            assert await page.get_by_label("Key").is_visible()
            await context.close()


async def test_a_new_call_appears_on_the_open_page(site: Site, page: "Page") -> None:
    async with httpx.AsyncClient(base_url=f"{site.url}/v1/sessions/living", timeout=60, verify=False) as http:

        async def call(number: int) -> None:
            event = {"type": "user.message", "content": f"message {number}"}
            await http.post("/context", json={"append": {"events": [event]}})

        await call(1)
        async with page.expect_response("**/live*"):
            await page.goto("/ui/sessions/living/strata")
        await call(2)
        await page.get_by_text("The last column's call, 2,").wait_for()
