"""`make bench NAME=screenshots`: the pictures of pages in docs/images, in light and dark colours.

A server of its own replays our sample of a coding agent's log. Chromium is Debian's; Playwright is in the environment
of the browser tests.
"""

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.quality.servers import Stack, a_stack

if TYPE_CHECKING:
    from playwright.async_api import Browser

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "images"
ENVIRONMENT: Final = ROOT / "tests" / "browser" / ".venv"
CHROMIUM: Final = "/usr/bin/chromium"
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
SAMPLE: Final = ROOT / "tests" / "samples" / "agent_log.jsonl"
SESSION: Final = "coding-agent"
WINDOW_TOKENS: Final = 12_000
SCHEMES: Final = ("light", "dark")
WIDTH, HEIGHT = 1180, 760


@dataclass(frozen=True)
class Picture:
    """A page of the session: the name of its files, and the path below that of the session."""

    name: str
    path: str


async def replay(stack: Stack, recording: Path) -> list[str]:
    """Replay a recording, and return the ids of its calls, oldest first."""
    options = ("--url", str(stack.http.base_url), "--session", SESSION, "--keep", "--limit", "1")
    command = (sys.executable, "-m", "app.cli", "replay", str(recording), "--max-tokens", str(WINDOW_TOKENS), *options)
    running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=os.environ | {"COLUMNS": "100"})
    if await running.wait():
        raise SystemExit("the recording could not be replayed")
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
    context = await browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light", viewport={"width": WIDTH, "height": HEIGHT}
    )
    page = await context.new_page()
    answer = await page.goto(f"{url}/ui/sessions/{SESSION}{picture.path}")
    if answer is None or answer.status != 200:
        raise SystemExit(f"no picture of {page.url}: {answer and answer.status}")
    file = IMAGES / f"{picture.name}-{scheme}.png"
    await page.screenshot(path=file, animations="disabled")
    await context.close()
    return file


async def run(recording: Path) -> None:
    """Replay, and take all pictures."""
    from playwright.async_api import async_playwright

    IMAGES.mkdir(exist_ok=True)
    async with a_stack() as stack, async_playwright() as playwright:
        calls = await replay(stack, recording)
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for picture in pictures(calls):
            for scheme in SCHEMES:
                file = await take(browser, str(stack.http.base_url).rstrip("/"), picture, scheme)
                print(f"{file.stat().st_size / 1000:5.0f} KB  {file.relative_to(ROOT)}")
        await browser.close()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recording", type=Path, default=SAMPLE, help="a recording of an agent's session")
    given = parser.parse_args()
    sys.path += map(str, ENVIRONMENT.glob("lib/python3.*/site-packages"))
    asyncio.run(run(given.recording))


if __name__ == "__main__":
    main()
