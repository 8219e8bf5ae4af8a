"""`make bench NAME=screenshots`: the pictures of pages in docs/images, in light and dark colours.

A server of its own plays a session in which an agent reads this repository. Chromium is Debian's; Playwright is in the
environment of the browser tests.
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.quality.servers import Stack, a_stack
from bench.screenshots.session import play

if TYPE_CHECKING:
    from playwright.async_api import Browser

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "images"
ENVIRONMENT: Final = ROOT / "tests" / "browser" / ".venv"
CHROMIUM: Final = "/usr/bin/chromium"
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
SESSION: Final = "coding-agent"
SCHEMES: Final = ("light", "dark")
WIDTH, HEIGHT, COLOURS = 1180, 760, 256


@dataclass(frozen=True)
class Picture:
    """A page of the session: the name of its files, and the path below that of the session."""

    name: str
    path: str


async def call_ids(stack: Stack) -> list[str]:
    """Return the ids of the session's calls, oldest first."""
    answer = await stack.http.get(f"/v1/sessions/{SESSION}/calls", params={"limit": 1000})
    return [call["call_id"] for call in reversed(answer.json()["items"])]


def pictures(calls: list[str]) -> tuple[Picture, ...]:
    """Return the pages to take pictures of."""
    return (
        Picture("window", ""),
        Picture("strata", "/strata"),
        Picture("call", f"/calls/{calls[len(calls) * 3 // 4]}"),
    )


async def take(browser: "Browser", url: str, picture: Picture, scheme: str) -> Path:
    """Take a picture of the top of a page in one colour scheme."""
    from PIL import Image

    context = await browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light", viewport={"width": WIDTH, "height": HEIGHT}
    )
    page = await context.new_page()
    answer = await page.goto(f"{url}/ui/sessions/{SESSION}{picture.path}")
    if answer is None or answer.status != 200:
        raise SystemExit(f"no picture of {page.url}: {answer and answer.status}")
    file = IMAGES / f"{picture.name}-{scheme}.png"
    with Image.open(BytesIO(await page.screenshot(animations="disabled"))) as taken:
        taken.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)
    await context.close()
    return file


async def run() -> None:
    """Play the session, and take all pictures."""
    from playwright.async_api import async_playwright

    IMAGES.mkdir(exist_ok=True)
    async with a_stack() as stack, async_playwright() as playwright:
        await play(stack.http, SESSION)
        calls = await call_ids(stack)
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for picture in pictures(calls):
            for scheme in SCHEMES:
                file = await take(browser, str(stack.http.base_url).rstrip("/"), picture, scheme)
                print(f"{file.stat().st_size / 1000:5.0f} KB  {file.relative_to(ROOT)}")
        await browser.close()


def main() -> None:
    """Take the pictures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.path += map(str, ENVIRONMENT.glob("lib/python3.*/site-packages"))
    asyncio.run(run())


if __name__ == "__main__":
    main()
