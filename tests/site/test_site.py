"""The site: every link holds, each page reads as its Markdown does, and a browser asks no other host for anything."""

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from markdown_it import MarkdownIt

from tests.browser.looks import SCHEMES, Look, listen
from tests.site.conftest import git
from tests.site.reading import Reading
from website.__main__ import SETTINGS, places
from website.source import sources

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.site
MARKDOWN: Final = MarkdownIt("commonmark").enable("table")
PHONE: Final = {"width": 390, "height": 844}
DESK: Final = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def readings(html: Path) -> dict[str, Reading]:
    """Every page of the site, by its path, without the one for addresses that do not exist."""
    files = [file for file in sorted(html.rglob("*.html")) if file.name != "404.html"]
    return {str(file.relative_to(html)): Reading(file.read_text(encoding="utf-8"), article=True) for file in files}


def test_every_link_and_anchor_leads_somewhere(html: Path, readings: dict[str, Reading]) -> None:
    files = {str(file.relative_to(html)) for file in html.rglob("*") if file.is_file()}
    broken, checked = [], 0
    for path, page in readings.items():
        for link in page.links:
            parts = urlsplit(urljoin(f"http://site/{path}", link))
            if parts.netloc != "site":
                continue
            target = unquote(parts.path).lstrip("/")
            target += "index.html" if not target or target.endswith("/") else ""
            checked += 1
            anchors = readings[target].ids if target in readings else None
            if target not in files or (parts.fragment and anchors is not None and parts.fragment not in anchors):
                broken.append((path, link))
    assert broken == []
    assert checked > 5_000


def test_a_page_reads_as_its_markdown_does(readings: dict[str, Reading]) -> None:
    """A code host shows the same paragraphs, lists and tables."""
    different = []
    for source in sources():
        if source.place == "api.md":  # partly HTML
            continue
        plain = Reading(MARKDOWN.render(source.text))
        page = readings[source.place.removesuffix(".md") + ".html"]
        if (plain.texts, +plain.tags) != (page.texts, +page.tags):
            lost = [text for text in plain.texts if text not in page.texts]
            different.append((source.origin, lost[:2], plain.tags - page.tags, page.tags - plain.tags))
    assert different == []


def test_the_texts_for_models_have_every_page_of_the_navigation(html: Path) -> None:
    nav = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["project"]["nav"]
    names = list(places(nav))
    listed = (html / "llms.txt").read_text(encoding="utf-8")
    whole = (html / "llms-full.txt").read_text(encoding="utf-8")
    assert len(names) > 60
    assert [name for name in names if f"(<http://127.0.0.1:8000/{name}>): " not in listed] == []
    assert [name for name in names if not (html / name).is_file()] == []
    titles = {source.place: source.title for source in sources()}
    assert [name for name in names if titles[name] not in whole.replace("`", "")] == []


async def test_a_page_asks_no_other_host_and_fits_a_phone(
    address: str, readings: dict[str, Reading], chromium: "Browser"
) -> None:
    wrong = []
    for scheme, paths in zip(SCHEMES, (list(readings)[::2], list(readings)[1::2]), strict=True):
        context = await chromium.new_context(viewport=PHONE, color_scheme=scheme)
        page = await context.new_page()
        listen(page, seen := Look(scheme))
        for path in paths:
            await page.goto(f"{address}/{path}")
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            strange = [one for one in seen.requests if not one.startswith((f"{address}/", "data:", "blob:"))]
            if strange or seen.messages or wide > 0:
                wrong.append((path, strange, list(seen.messages), wide))
            seen.requests.clear()
            seen.messages.clear()
        await context.close()
    assert wrong == []


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_reference_shows_every_operation(address: str, html: Path, chromium: "Browser", scheme: str) -> None:
    document = json.loads((html / "openapi.json").read_text(encoding="utf-8"))
    operations = [(method, path) for path, methods in document["paths"].items() for method in methods]
    context = await chromium.new_context(viewport=DESK, color_scheme=scheme)
    page = await context.new_page()
    await page.goto(f"{address}/api.html")
    await page.locator(".opblock").nth(len(operations) - 1).wait_for()
    assert await page.locator(".opblock").count() == len(operations) > 50
    dark = await page.evaluate("document.documentElement.classList.contains('dark-mode')")
    assert dark is (scheme == "dark")
    await context.close()


async def test_the_search_finds_a_word(address: str, chromium: "Browser") -> None:
    context = await chromium.new_context(viewport=DESK)
    page = await context.new_page()
    await page.goto(f"{address}/index.html")
    await page.locator("button.md-search__button").click()
    await page.get_by_role("combobox", name="Search").fill("PgBouncer")
    found = page.locator("a[href*='compose.html'], a[href*='deploy.html']").filter(has_text="PgBouncer")
    await found.first.wait_for()
    await context.close()


async def test_each_release_has_its_pages(releases: Path, published: str, chromium: "Browser") -> None:
    rows = json.loads((releases / "versions.json").read_text(encoding="utf-8"))
    assert [(row["version"], row["aliases"]) for row in rows] == [("0.10.0", ["latest"]), ("0.9.0", [])]
    assert git("-C", str(releases), "log", "--format=%s") == "site: the pages of 0.9.0\nsite: the pages of 0.10.0"
    assert "https://docs.example.org/0.10.0/tutorial.md" in (releases / "llms.txt").read_text(encoding="utf-8")
    context = await chromium.new_context(viewport=DESK)
    page = await context.new_page()
    await page.goto(f"{published}/index.html")
    await page.wait_for_url(f"{published}/0.10.0/")
    await page.locator(".md-version").get_by_text("0.9.0").wait_for(state="attached")
    assert not await page.get_by_text("This page describes an earlier release").is_visible()
    await page.goto(f"{published}/0.9.0/adapters/langchain.html")
    await page.get_by_text("This page describes an earlier release").wait_for()
    await page.get_by_role("link", name="The newest is here.").click()
    await page.wait_for_url(f"{published}/0.10.0/")
    await context.close()
