"""A running server with recorded and hostile sessions, and Debian's chromium.

Playwright and axe-core are in an environment of their own (`make test-more NAME=browser` makes it), which is added to
that of the tests. The folder is left out if there is none.
"""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.acceptance.conftest import Commands
from tests.browser.sites import Site, coding_sessions, fill_hostile, replay
from tests.support.databases import migrated
from tests.support.folders import data_folder

if TYPE_CHECKING:
    from playwright.async_api import Browser

CHROMIUM: Final = "/usr/bin/chromium"
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ENVIRONMENT: Final = [*(Path(__file__).parent / ".venv").glob("lib/python3.*/site-packages")]

sys.path += map(str, ENVIRONMENT)
collect_ignore_glob = [] if ENVIRONMENT else ["test_*.py"]


@pytest.fixture(scope="session")
async def chromium() -> "AsyncIterator[Browser]":
    """Debian's chromium."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture(scope="session")
async def site(postgres: str, template: str, pytestconfig: pytest.Config) -> AsyncIterator[Site]:
    """A server and its worker, with a coding agent's recorded session and one of hostile contents."""
    async with migrated(postgres, template) as database_url:
        with data_folder() as folder:
            commands = Commands(folder / "data")
            serving = await commands.start("serve", DATABASE_URL=database_url)
            try:
                url = await serving.url()
                await replay(url, coding_sessions(pytestconfig.getoption("--recordings")))
                await fill_hostile(url)
                yield Site(url, serving, database_url)
            finally:
                await commands.kill_all()
