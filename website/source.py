"""The site's pages in Markdown: those of the repository at their place, with links that lead within the site."""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

ROOT: Final = Path(__file__).parent.parent
OWN: Final = ROOT / "website" / "pages"
"""Pages that only the site has, and the beginnings of those that are made of parts of others."""
MOVED: Final = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "clients/python/README.md": "clients/python.md",
    "clients/typescript/README.md": "clients/typescript.md",
    "tools/README.md": "clients/tools.md",
    "tests/golden/README.md": "recorded-calls.md",
    "openapi/palimpsest.json": "api.md",
}
"""Pages outside `docs/`, and their places on the site."""
README_SPLIT: Final = "<!-- site: from here on it is the page of the tour -->\n"
"""The place where the README is cut: the first part is the site's first page."""
FIRST: Final = "index.md"
TOUR: Final = "tour.md"
LANGUAGES: Final = {".json": "json", ".sh": "sh", ".yaml": "yaml", ".yml": "yaml", ".ini": "ini"}

_FENCE: Final = re.compile(r"^( *)(```+).*?^\1\2`*$", re.MULTILINE | re.DOTALL)
LINKS: Final = re.compile(r"(`+).+?\1(?!`)|(?P<before>\]\(|\b(?:src|srcset|href)=\")(?P<target>[^)\s\"]+)", re.DOTALL)
_COMMENT: Final = re.compile(r"^ *<!--.*?-->\n", re.DOTALL | re.MULTILINE)
_HEADING: Final = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_EXTERNAL: Final = re.compile(r"[a-z]+:")


@dataclass(frozen=True)
class Source:
    """A page's text, the file in the repository that it is from, and its place on the site."""

    place: str
    origin: str
    text: str

    @property
    def title(self) -> str:
        """The first heading."""
        found = _HEADING.search(outside_code(self.text))
        return found[1].replace("`", "") if found else self.place

    @property
    def description(self) -> str:
        """The first sentence of the first paragraph, without marks of Markdown; empty if a page begins otherwise."""
        for paragraph in re.split(r"\n\s*\n", outside_code(self.text)):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            if plain and plain[0].isalpha():
                return re.split(r"(?<=[.:])\s", re.sub(r"[`*]", "", plain))[0].rstrip(":")
        return ""


def outside_code(text: str) -> str:
    """Return a page's text without its blocks of code."""
    return _FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts and the site name them."""
    return {re.sub(r"[^\w\- ]", "", name.strip().lower()).replace(" ", "-") for name in _headings(text)}


def _headings(text: str) -> list[str]:
    return [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", name) for name in _HEADING.findall(outside_code(text))]


@cache
def tracked() -> frozenset[str]:
    """Return the files of the repository and their folders."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    files = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    return frozenset(str(path) for name in files for path in (PurePosixPath(name), *PurePosixPath(name).parents))


def place_of(path: str) -> str:
    """Return the place on the site of a file or folder of the repository. Raises KeyError if there is no such file."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("website/pages/"):
        return path.removeprefix("website/pages/")
    if path not in tracked():
        raise KeyError(path)
    place = PurePosixPath(path.removeprefix("docs/"))
    if (ROOT / path).is_dir():
        return str(place / "index.md")
    if place.name == "README.md":
        return str(place.with_name("index.md"))
    return str(place) if path.startswith("docs/") or place.suffix == ".md" else f"{place}.md"


def sources() -> list[Source]:
    """Return all pages as the site shows them. Raises ValueError for a link to a file that does not exist."""
    found = [*_parts_of_readme(), *_written()]
    first, tour = found[0], found[1]

    def readme(anchor: str) -> str:
        return TOUR if anchor and anchor not in anchors(first.text) and anchor in anchors(tour.text) else FIRST

    shown = {}
    waiting = found
    while waiting:
        wanted: set[str] = set()
        for page in waiting:
            shown[page.place] = replace(page, text=linked(page, readme, wanted))
        waiting = [_copy(path) for path in sorted(wanted) if place_of(path) not in shown]
    return list(shown.values())


def _parts_of_readme() -> Iterator[Source]:
    first, tour = (ROOT / "README.md").read_text(encoding="utf-8").split(README_SPLIT)
    yield Source(FIRST, "README.md", first)
    beginning = (OWN / TOUR).read_text(encoding="utf-8").replace("../../", "")  # links as the README has them
    yield Source(TOUR, "README.md", beginning + tour)


def _written() -> Iterator[Source]:
    names = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "docs").rglob("*.md"))]
    for name in (*names, *(name for name in MOVED if name.endswith(".md"))):
        text = (ROOT / name).read_text(encoding="utf-8")
        yield Source(place_of(name), name, text if text.startswith("# ") else f"# {_titled(name)}\n\n{text}")
    yield Source("api.md", "website/pages/api.md", (OWN / "api.md").read_text(encoding="utf-8"))


def _titled(name: str) -> str:
    return PurePosixPath(place_of(name)).stem.replace("-", " ").capitalize()


def _copy(path: str) -> Source:
    """Return the page of a file that a page links to, or of a folder, which lists what is in it."""
    file = ROOT / path
    if file.is_dir():
        inside = sorted(name for name in tracked() if str(PurePosixPath(name).parent) == path)
        text = "\n".join(f"* [{PurePosixPath(name).name}]({PurePosixPath(name).name})" for name in inside)
        return Source(place_of(path), f"{path}/", f"# {path}\n\nA folder of the repository.\n\n{text}\n")
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return Source(place_of(path), path, text)
    code = f"`````{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n`````"
    return Source(place_of(path), path, f"# {path}\n\nA file of the repository.\n\n{code}\n")


def linked(page: Source, readme: Callable[[str], str], wanted: set[str]) -> str:
    """Return a page's text with links from its place on the site.

    `readme` gives the page that has an anchor of the README. Files outside `docs/` that are linked to are added to
    `wanted`.
    """
    folder = page.origin.rpartition("/")[0] or "."

    def moved(target: str) -> str:
        path, mark, anchor = target.partition("#")
        if _EXTERNAL.match(target):
            return target
        origin = normpath(f"{folder}/{path}") if path else page.origin
        try:
            place = readme(anchor) if origin == "README.md" else place_of(origin)
        except KeyError:
            raise ValueError(f"{page.origin} links to {target}, which does not exist") from None
        if origin not in MOVED and not origin.startswith(("docs/", "website/")) and origin != "README.md":
            wanted.add(origin)
        near = relpath(place, str(PurePosixPath(page.place).parent))
        return f"{mark}{anchor}" if place == page.place and anchor else f"{near}{mark}{anchor}"

    def link(found: re.Match[str]) -> str:
        return found[0] if found["target"] is None else found["before"] + moved(found["target"])

    def shown(prose: str) -> str:
        return LINKS.sub(link, _COMMENT.sub("", prose))

    parts, end = [], 0
    for fence in _FENCE.finditer(page.text):
        parts += [shown(page.text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, shown(page.text[end:])])
