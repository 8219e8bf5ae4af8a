"""Each page that a link leads to, in chromium: accessible, silent, on its own host, and the same without JavaScript."""

import gzip
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from app.wings.pages.page import assets
from tests.browser.looks import Look, look
from tests.browser.sites import HOSTILE, RECORDED, SCRIPT, Site
from tests.support.crawl import Page, crawl, declared, route_of, targets
from tests.support.markup import Markup, without_contents

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.browser
WEIGHT_MAX: Final = 60_000
APART: Final = {"/ui/login": 200, "/ui/?find=%00": 422, "/ui/sessions/absent": 404}
"""Pages that no link leads to, with their status."""
POLICY: Final = {
    "default-src": "'self'",
    "base-uri": "'none'",
    "object-src": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
AGES: Final = re.compile(r"just now|\d+ (?:min|h|d|s) ago|\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d")
NEVER_OURS: Final = {"img", "b", "i", "style", "textarea", "iframe"}
"""Tags in the hostile texts that no page has."""
UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="session")
async def answers(site: Site) -> list[Page]:
    """One page of each kind, for a recorded and the hostile session, those that no link leads to, and texts."""
    async with httpx.AsyncClient(base_url=site.url, timeout=60, verify=False) as http:
        found = await crawl(http, (RECORDED, HOSTILE), {"find": "script", "call": "3", "number": "3"})
        apart = [Page.of(path, (path,), await http.get(path)) for path in APART]
        return [*found, *apart]


@pytest.fixture(scope="session")
def pages(answers: list[Page]) -> list[Page]:
    """All of them that are pages."""
    return [page for page in answers if page.is_html]


@pytest.fixture(scope="session")
async def looks(site: Site, pages: list[Page], chromium: "Browser") -> list[Look]:
    """Those pages in a browser, checked by axe-core."""
    return [await look(chromium, site.url + page.path, axe=True) for page in pages]


def test_links_lead_to_every_page(answers: list[Page]) -> None:
    statuses = {page.path: page.status for page in answers if page.status != APART.get(page.path, 200)}
    assert statuses == {}
    assert declared() - {page.kind[0] for page in answers} == set()


def test_no_link_is_dead(answers: list[Page]) -> None:
    """A link to a page that the crawl did not follow, since it has another of that kind, has a route at least."""
    links = {urljoin(page.path, link) for page in answers for link in targets(page, {})}
    assert {link for link in links if link.startswith("/ui/") and route_of(urlsplit(link).path) is None} == set()


def test_the_policy_lets_nothing_in_that_is_not_of_this_server(answers: list[Page]) -> None:
    for page in answers:
        sent = page.headers["content-security-policy"]
        policy = dict(part.split(maxsplit=1) for part in sent.split("; "))
        assert policy == POLICY or (not page.is_html and policy["default-src"] == "'none'"), page.path
        assert "unsafe" not in sent, page.path
        assert page.headers["x-content-type-options"] == "nosniff", page.path
        assert not page.is_html or Markup.of(page.html).inline == [], page.path


def test_a_file_or_text_runs_no_script(answers: list[Page]) -> None:
    others = [page for page in answers if not page.is_html]
    assert others
    for page in others:
        kind = page.headers["content-type"].partition(";")[0]
        if kind == "text/html":
            assert "script" not in Markup.of(page.html).tags, page.path
            assert [one for one in Markup.of(page.html).inline if not one.startswith("<style")] == [], page.path
        else:
            assert kind in ("text/plain", "application/json"), page.path


async def test_no_event_is_markup_on_its_page(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.url, timeout=60, verify=False) as http:
        head = (await http.get(f"/v1/sessions/{HOSTILE}")).json()["head"]
        for seq in range(1, head + 1):
            page = Markup.of((await http.get(f"/ui/sessions/{HOSTILE}/events/{seq}")).text)
            assert (page.inline, page.tags & NEVER_OURS) == ([], set()), seq


def test_a_page_weighs_no_more_than_60_kilobytes_without_contents(pages: list[Page]) -> None:
    files = sum(len(packed) for _, packed in assets().values())
    weights = {page.path: files + len(gzip.compress(without_contents(page.html).encode())) for page in pages}
    for path, weight in sorted(weights.items(), key=lambda item: -item[1])[:5]:
        print(f"{weight:>7,} bytes, {files:,} of them files: {path}")
    assert max(weights.values()) <= WEIGHT_MAX


def test_axe_finds_nothing_in_light_or_dark(looks: list[Look]) -> None:
    assert {seen.address: seen.findings for seen in looks if seen.findings} == {}


def test_nothing_is_said_on_the_console(looks: list[Look]) -> None:
    refused = re.compile(r"^console: Failed to load resource: the server responded with a status of 4(?:04|22)\b")
    assert {seen.address: seen.messages for seen in looks if any(not refused.match(one) for one in seen.messages)} == {}


def test_no_request_leaves_the_host(site: Site, looks: list[Look]) -> None:
    host = urlsplit(site.url).netloc
    asked = {url for seen in looks for url in seen.requests}
    assert len(asked) > len(looks)
    assert {url for url in asked if urlsplit(url).netloc != host} == set()


async def test_a_page_says_the_same_without_javascript(looks: list[Look], chromium: "Browser") -> None:
    for seen in looks:
        without = await look(chromium, seen.address, scripts=False)
        assert AGES.sub("", without.text) == AGES.sub("", seen.text), seen.address


def test_hostile_contents_are_text(looks: list[Look]) -> None:
    hostile = [seen for seen in looks if HOSTILE in seen.address]
    assert any(SCRIPT in seen.text for seen in hostile)
    for seen in hostile:
        assert UNSEEN.findall(seen.text) == [], seen.address


async def test_the_checks_see_faults(chromium: "Browser") -> None:
    faulty = (
        "<main><p style='color:%23ccc;background:%23fff'>pale</p><img src='http://127.0.0.1:9/x.png'></main>"
        "<script>console.error('said'); alert('opened')</script>"
    )
    seen = await look(chromium, f"data:text/html,{faulty}", axe=True)
    assert [message for message in seen.messages if "said" in message or "opened" in message]
    assert any(url.startswith("http://127.0.0.1:9/") for url in seen.requests)
    assert {"color-contrast", "image-alt"} <= {one.split()[1] for one in seen.findings}
    assert Markup.of(faulty).inline
