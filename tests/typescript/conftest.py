"""The TypeScript client, built, and its programs, compiled."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.runtime.settings import Settings
from tests.conftest import serving
from tests.support.tenants import working

PACKAGE = Path(__file__).parents[2] / "clients" / "typescript"
NEEDS_NPM = [
    pytest.mark.typescript,
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed: the TypeScript client is not built"),
]


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[str]:
    """The base URL of a server on the test's database. A worker is running."""
    async with working(database_url), serving(Settings(), database_url) as url:
        yield url


def npm(*command: str) -> None:
    """Run an npm script of the package; on a failure, show its output."""
    whole = ["npm", "run", "--silent", *command]
    done = subprocess.run(whole, cwd=PACKAGE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def built() -> Path:
    """Build the package and compile its programs, with all of the compiler's checks; return their folder."""
    npm("build")
    npm("build:tests")
    return PACKAGE / "build"


async def run(folder: Path, program: str, *arguments: str, **environment: str) -> str:
    """Run a program in Node; return its output. Fails if the program does."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PALIMPSEST_")}
    process = await asyncio.create_subprocess_exec(
        "node",
        folder / program,
        *arguments,
        env={**known, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, out.decode() + errors.decode()
    return out.decode()


def blocks(page: str) -> list[str]:
    """Return the programs of a page in Markdown."""
    return re.findall(r"```ts\n(.*?)```", page, re.DOTALL)


async def run_page(programs: list[str], **environment: str) -> str:
    """Compile a page's programs as one, run it, and return its output."""
    source = PACKAGE / "tests" / "readme.ts"
    source.write_text("\n".join(programs))
    try:
        npm("build:tests")
        return await run(PACKAGE / "build", "readme.js", **environment)
    finally:
        source.unlink()
