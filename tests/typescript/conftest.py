"""The TypeScript client, built, and its programs, compiled."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.client.wire import Provider

PACKAGE = Path(__file__).parents[2] / "clients" / "typescript"
Program = Callable[..., Awaitable[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("npm") is None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="npm is not installed: the TypeScript client is not built"))


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


def addresses(server: str, models: Provider) -> dict[str, str]:
    """Return the environment of a program: a server, and a stand-in of the providers."""
    return {
        "PALIMPSEST_URL": server,
        "OPENAI_BASE_URL": f"{models.url}/v1",
        "OPENAI_API_KEY": "a key",
        "ANTHROPIC_BASE_URL": models.url,
        "ANTHROPIC_API_KEY": "a key",
        "GOOGLE_GEMINI_BASE_URL": models.url,
        "GEMINI_API_KEY": "a key",
    }
