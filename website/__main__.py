"""Build the site into `build/site/html`, or a release's into a folder that holds those of all releases.

python -m website
python -m website --into FOLDER --version 0.7.0 --url https://docs.example.org/
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from website.source import FIRST, ROOT, Source, sources

PROJECT: Final = ROOT / "build" / "site"
PAGES: Final = PROJECT / "docs"
HTML: Final = PROJECT / "html"
SETTINGS: Final = ROOT / "website" / "zensical.toml"
ICON: Final = ROOT / "app" / "wings" / "pages" / "static" / "icon.svg"
SWAGGER: Final = ROOT / "app" / "http" / "swagger_ui"
PROGRAM: Final = "swagger-ui-bundle.js"
SWAGGER_FILES: Final = (
    "swagger-ui-bundle.js.LICENSE.txt",
    "swagger-ui.css",
    "LICENSE",
    "NOTICE",
)
LOCAL: Final = "http://127.0.0.1:8000/"
LATEST: Final = "latest"
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")


def build(url: str = LOCAL, version: str | None = None) -> Path:
    """Build the site, and return the folder of its pages. Ends the process if Zensical has a warning."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    pages = sources()
    for page in pages:
        put(PAGES / page.place, f"---\ndescription: {json.dumps(page.description)}\n---\n\n{page.text}")
    for file in (ROOT / "docs").rglob("*"):
        if file.is_file() and file.suffix != ".md":
            put(PAGES / file.relative_to(ROOT / "docs"), file.read_bytes())
    for file in (*(ROOT / "website" / name for name in ("site.css", "site.js")), ICON):
        put(PAGES / "files" / file.name, file.read_bytes())
    for file in (*(SWAGGER / name for name in SWAGGER_FILES), ROOT / "website" / "swagger.js"):
        put(PAGES / "swagger" / file.name, file.read_bytes())
    put(PAGES / "swagger" / PROGRAM, gzip.decompress((SWAGGER / f"{PROGRAM}.gz").read_bytes()))
    put(PAGES / "openapi.json", (ROOT / "openapi" / "palimpsest.json").read_bytes())
    shutil.copytree(ROOT / "website" / "theme", PROJECT / "theme")
    put(PROJECT / "zensical.toml", settings({page.place: page for page in pages}, url, version))
    command = (sys.executable, "-m", "zensical", "build", "--strict", "--clean")
    done = subprocess.run(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"NO_COLOR": "1"}
    )
    said = _COLOURS.sub("", done.stdout.decode())
    if done.returncode or "Warning" in said:
        raise SystemExit(said)
    return HTML


def put(path: Path, content: str | bytes) -> None:
    """Write a file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def settings(pages: dict[str, Source], url: str, version: str | None) -> str:
    """Return Zensical's settings: those of the site, with its address and version, and each page in `llms.txt`."""
    text = SETTINGS.read_text(encoding="utf-8")
    nav = tomllib.loads(text)["project"]["nav"]
    here = {"site_url": f"{url.rstrip('/')}/{version}/" if version else url}
    lines = [text.replace("[project]\n", f"[project]\nsite_url = {json.dumps(here['site_url'])}\n", 1)]
    if version:
        lines += ["[project.extra.version]", 'provider = "mike"', f'default = "{LATEST}"']
    lines += [
        "[project.plugins.llmstxt]",
        'full_output = "llms-full.txt"',
        f"markdown_description = {json.dumps(pages[FIRST].text.split(chr(10) * 2)[1])}",
        "[project.plugins.llmstxt.sections]",
    ]
    for section in nav:
        [(title, inside)] = section.items()
        entries = ", ".join(
            f"{{ {json.dumps(place)} = {json.dumps(pages[place].description, ensure_ascii=False)} }}"
            for place in places(inside)
        )
        lines.append(f"{json.dumps(title)} = [{entries}]")
    return "\n".join(lines) + "\n"


def places(nav: Any) -> Iterator[str]:
    """Yield the places of all pages in a part of the navigation, in order."""
    if isinstance(nav, str):
        yield nav
    for inside in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from places(inside)


def publish(folder: Path, version: str, url: str) -> None:
    """Put a release's site into a folder that holds those of all releases, whose first page leads to the newest."""
    html = build(url, version)
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(html, folder / version)
    known = folder / "versions.json"
    names = {one["version"] for one in json.loads(known.read_text())} if known.exists() else set()
    newest, *others = sorted(names | {version}, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    rows = [{"version": newest, "title": newest, "aliases": [LATEST]}]
    rows += [{"version": name, "title": name, "aliases": []} for name in others]
    put(known, json.dumps(rows, indent=1) + "\n")
    put(
        folder / "index.html",
        f'<!doctype html><meta http-equiv="refresh" content="0; url={newest}/"><title>Palimpsest</title>\n',
    )
    for name in ("llms.txt", "llms-full.txt"):
        shutil.copyfile(folder / newest / name, folder / name)
    put(folder / ".nojekyll", "")


def main() -> None:
    """Parse the command line."""
    parser = ArgumentParser(prog="python -m website", description="Build the site.")
    parser.add_argument("--into", type=Path, help="a folder that holds the sites of all releases")
    parser.add_argument("--version", help="the release, as 0.7.0; needs --into")
    parser.add_argument("--url", default=LOCAL, help="the address under which the folder is published")
    options = parser.parse_args()
    if (options.into is None) != (options.version is None):
        parser.error("--into and --version belong together")
    if options.into is None:
        print(build(options.url) / "index.html")
    else:
        publish(options.into, options.version, options.url)
        print(options.into / options.version / "index.html")


if __name__ == "__main__":
    main()
