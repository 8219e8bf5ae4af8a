"""Each figure of the README and of the comparison has a row with its command and its data in `docs/believed.md`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = {"README": "README.md", "compared": "docs/compared.md"}
SOURCES = ("believed.md", "benchmarks.md")
"""The pages that have the commands of figures."""
UNIT = r"%|×|times\b|ms\b|s\b|seconds?\b|[KMG]B\b|(?:million )?tokens\b"
FIGURE = re.compile(rf"(?<![\w.,-])(\d[\d,.]*) ?({UNIT})")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"`(?:\.venv/bin/)?(?:make|palimpsest) [^`]+`")
"""A command of ours."""
OTHERS = re.compile(r"\| \[[^]]*\]\(#")
"""A row about others, which links to their section."""
MADE_HERE = {"none", "in this repository", "made by the command"}
"""Data that a clone has."""
DATED = re.compile(
    r"\*[^*]*\b(?:January|February|March|April|May|June|July|August|September|October|November|December)"
)


def figures(text: str) -> set[str]:
    """Return the numbers with a unit, written in one way."""
    return {f"{number} {unit}".replace(" %", "%") for number, unit in FIGURE.findall(text)}


def blocks(text: str) -> Iterator[str]:
    """Yield paragraphs, parts of lists and rows of tables, each as one line."""
    for block in re.split(r"\n\s*\n|\n(?=\s*[*|] )", FENCE.sub("", text)):
        yield " ".join(block.split())


def sections(page: str) -> list[str]:
    return re.split(r"^(?=## )", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)


def is_ours(section: str, block: str) -> bool:
    """Whether the figures of a block are ours, and not those of others, which the comparison states with a source."""
    if section.startswith("## Alternatives"):
        return OURS.search(block) is not None
    return OTHERS.match(block) is None


def figures_of(section: str) -> set[str]:
    return {found for block in blocks(section) if is_ours(section, block) for found in figures(block)}


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    figure: str
    pages: list[str]
    command: str
    prints: str
    data: str


def rows() -> list[Row]:
    page = (ROOT / "docs" / "believed.md").read_text(encoding="utf-8")
    section = page.split("\n### The figures of other pages\n")[1].split("\n#")[0]
    cells = [re.split(r" *\| *", line.strip("| ")) for line in re.findall(r"^\|(?! figure|---).*", section, re.M)]
    return [Row(figure, pages.split(", "), *rest) for figure, pages, *rest in cells]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It saves 42%, and\nup to 3.5 % more.", {"42%", "3.5%"}),
        (
            "2.4 ms for 8,000 tokens, 3× and 1.5 times the size of 250 MB",
            {"2.4 ms", "8,000 tokens", "3 ×", "1.5 times", "250 MB"},
        ),
        ("Python 3.11, 63 compactions of 2026 and gpt-4o", set()),
    ],
)
def test_a_figure_is_a_number_with_a_unit(text: str, found: set[str]) -> None:
    assert figures(text) == found


@pytest.mark.parametrize("name", PAGES)
def test_each_figure_of_a_page_has_a_row_and_each_row_a_figure(name: str) -> None:
    """A figure that no command prints, and a row that outlived its figure, are found here."""
    stated = {found for section in sections(PAGES[name]) for found in figures_of(section)}
    listed = {found for row in rows() if name in row.pages for found in figures(row.figure)}
    assert stated - listed == set(), f"{PAGES[name]} states figures that docs/believed.md has no row for"
    assert listed - stated == set(), f"docs/believed.md has rows for figures that {PAGES[name]} does not state"
    assert len(stated) > 5


def test_each_row_has_a_command_and_data_that_a_stranger_can_get() -> None:
    assert len(rows()) > 8
    for row in rows():
        assert set(row.pages) <= set(PAGES), row
        assert OURS.search(row.command), row
        assert row.prints, row
        assert row.data in MADE_HERE or "](https://" in row.data, row


@pytest.mark.parametrize("page", PAGES.values())
def test_each_section_with_a_figure_links_to_its_command(page: str) -> None:
    sourceless = [
        section.splitlines()[0]
        for section in sections(page)
        if figures_of(section) and not any(source in section for source in SOURCES)
    ]
    assert sourceless == []


def test_facts_about_others_have_a_month() -> None:
    page = (ROOT / PAGES["compared"]).read_text(encoding="utf-8")
    alternatives = page.split("\n## Alternatives\n")[1].split("\n## ")[0].split("\n### ")[1:]
    assert len(alternatives) > 8
    dated = {text.splitlines()[0] for text in alternatives if DATED.match(text.split("\n\n")[1])}
    assert dated == {text.splitlines()[0] for text in alternatives}
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in dated}
    others = re.findall(r"^\| \[.*", page, re.MULTILINE)
    assert len(others) > 8
    assert {row.split("](#")[1].split(")")[0] for row in others} <= anchors
