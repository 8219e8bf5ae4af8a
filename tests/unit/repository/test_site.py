"""The site's pages before they are built: each is in the navigation or linked from there, and every anchor exists."""

import re
import tomllib
from pathlib import PurePosixPath
from posixpath import normpath

import pytest

from website.__main__ import SETTINGS, places
from website.source import LINKS, README_SPLIT, ROOT, Source, anchors, outside_code, sources

pytestmark = pytest.mark.wing("all")
NAV = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["project"]["nav"]


def targets(page: Source) -> list[tuple[str, str]]:
    """Return the pages that a page links to, with the anchors there."""
    found = []
    for link in LINKS.finditer(outside_code(page.text)):
        path, _, anchor = (link["target"] or "https:").partition("#")
        if not re.match(r"[a-z]+:", path):
            place = normpath(f"{PurePosixPath(page.place).parent}/{path}") if path else page.place
            found.append((place, anchor))
    return found


def test_every_page_is_reached_from_the_navigation() -> None:
    pages = {page.place: page for page in sources()}
    waiting = list(places(NAV))
    assert set(waiting) <= set(pages)
    reached = set()
    while waiting:
        place = waiting.pop()
        if place in pages and place not in reached:
            reached.add(place)
            waiting += [target for target, _ in targets(pages[place])]
    assert len(reached) > 100
    assert sorted(set(pages) - reached) == [], "give these pages a place in website/zensical.toml"


def test_links_between_pages_hold() -> None:
    pages = {page.place: page for page in sources()}
    broken, checked = [], 0
    for page in pages.values():
        for place, anchor in targets(page):
            checked += 1
            if place in pages and anchor and anchor not in anchors(pages[place].text):
                broken.append((page.origin, place, anchor))
    assert broken == []
    assert checked > 300


def test_the_readme_begins_with_the_first_page() -> None:
    first, tour = (ROOT / "README.md").read_text(encoding="utf-8").split(README_SPLIT)
    assert first.startswith("# Palimpsest\n")
    assert tour.lstrip().startswith("## ")
    assert all(page.description for page in sources() if page.place in set(places(NAV)))


def test_parts_of_a_list_are_indented_by_four_spaces() -> None:
    """With fewer, the site's Markdown ends the list there."""
    inside = re.compile(r"^ {1,3}(?:[*|] |```)", re.MULTILINE)
    assert [page.origin for page in sources() if inside.search(page.text) and page.place != "api.md"] == []
