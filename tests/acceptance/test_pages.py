"""Every page's commands and programs run as printed, in order, in an environment with the page's installations."""

import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.client.wire import polite, provider
from tests.support.clusters import free_port
from tests.support.folders import data_folder
from tests.support.pages import ROOT, RUN_AS, Block, Reader, blocks, clone, reader_environment

pytestmark = pytest.mark.pages

PAGES: dict[str, tuple[str, ...]] = {
    "README.md": ("palimpsest: data in ", "Buy milk.", "-17.2%", "It is 80,087.", "30 events, 30 new"),
    "clients/python/README.md": ("It is 80,087.", "the last event is"),
    "docs/tutorial.md": ("30 events, 30 new", "class Gauge"),
    "docs/gateway.md": ("serving on",),
    "docs/http.md": ('"items":[{"id":"demo"',),
    "docs/own-sessions.md": ("no model was called", "WHERE PALIMPSEST LOSES"),
    "docs/import-export.md": ("30 events, 30 new", "copy-of-tides"),
    "docs/settings.md": ("PALIMPSEST_LOG_JSON",),
    "docs/reconcile.md": ("Where is my order?",),
    "docs/adapters/openai_agents.md": ("Hello there.",),
    "docs/adapters/langchain.md": (),
    "docs/adapters/anthropic.md": (),
    "docs/adapters/pydantic_ai.md": (),
    "docs/adapters/google_adk.md": (),
    "docs/adapters/agent_framework.md": (),
    "docs/adapters/litellm.md": (),
    "docs/adapters/claude_agent.md": (),
    "docs/adapters/hermes.md": (),
    "docs/adapters/openhands.md": ("Hello there.",),
}
"""The pages that are run, and texts that they print."""
ENVIRONMENT = "{} -m venv ~/environment && . ~/environment/bin/activate\n"
NEWER_PYTHON = {"docs/adapters/openhands.md": 12}
"""The pages that need a newer Python than the server, and its minor version."""
SERVE = Block("sh", "make run\n", 0, None)
INSTALL = Block(
    "sh",
    "python3 -m venv ~/alone\n"
    "~/alone/bin/python -m pip install --quiet --no-compile --no-deps --require-hashes -r requirements/runtime.lock\n",
    0,
    None,
)
"""Pip's installation of a server's requirements and nothing else."""
SERVES_IN_MAX = 3
"""Maximum time until a fresh clone serves, in multiples of `INSTALL`'s."""


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Return the process's clone, in which the first page that starts a server makes the server's environment."""
    with TemporaryDirectory(prefix="palimpsest-pages-") as name:  # pytest's own folders are closed to Postgres' user
        yield clone(Path(name))


@pytest.fixture
def data() -> Iterator[Path]:
    with data_folder() as place:
        yield place / "data"


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_works_from_the_top(name: str, folder: Path, data: Path, tmp_path: Path) -> None:
    port = free_port()
    found = [block for block in blocks((ROOT / name).read_text(encoding="utf-8")) if block.language in RUN_AS]
    steps = [block for block in found if block.reason is None]
    if not any("make run" in block.text or "palimpsest serve" in block.text for block in steps):
        steps.insert(0, SERVE)
    home = tmp_path / "home"
    home.mkdir()
    if any("pip install" in block.text for block in steps) and not any("-m venv" in block.text for block in steps):
        steps.insert(0, Block("sh", ENVIRONMENT.format(python_for(name)), 0, None))
    async with provider(polite) as models:
        variables = reader_environment(home) | {
            "PALIMPSEST_DATA_DIR": str(data),
            "PALIMPSEST_PORT": str(port),
            "PALIMPSEST_URL": f"http://127.0.0.1:{port}",
            **models.environment,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",  # it would be sent to OpenAI itself
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the import would request it from another host
        }
        instead = {
            "127.0.0.1:8700": f"127.0.0.1:{port}",
            "https://api.openai.com/v1": f"{models.url}/v1",
            "https://api.anthropic.com": models.url,
        }
        printed = []
        async with Reader(folder, tmp_path, variables, instead) as reader:
            for step in steps:
                try:
                    printed.append(await reader.run(step))
                except AssertionError as error:
                    pytest.fail(f"{name}, line {step.line}: {error}", pytrace=False)
    missing = [words for words in PAGES[name] if words not in "".join(printed)]
    assert not missing, "".join(printed)


def python_for(page: str) -> str:
    """Return the Python that runs a page. The test is skipped if there is none."""
    if page not in NEWER_PYTHON:
        return "python3"
    find = runpy.run_path(str(ROOT / ".ci" / "interpreter.py"))["interpreter"]
    found: str | None = find(NEWER_PYTHON[page])
    return found or pytest.skip(f"needs Python 3.{NEWER_PYTHON[page]} or newer, and none was found")


async def test_the_environment_of_a_server_is_small(folder: Path, data: Path, tmp_path: Path) -> None:
    """Measured after a server has run, including its bytecode, in blocks as `du` does."""
    variables = {"PALIMPSEST_DATA_DIR": str(data), "PALIMPSEST_PORT": str(free_port())}
    async with Reader(folder, tmp_path, reader_environment(tmp_path) | variables, {}) as reader:
        await reader.run(SERVE)
    used = sum(file.lstat().st_blocks * 512 for file in (folder / ".venv").rglob("*"))
    assert used <= 250 * 1024**2
    assert not (folder / ".venv" / "bin" / "pytest").exists()


async def test_a_fresh_clone_serves_soon_after_its_lock_is_installed(data: Path, tmp_path: Path) -> None:
    """Both install from pip's cache. Seconds depend on the machine, so they are printed and the bound is a ratio."""
    with TemporaryDirectory(prefix="palimpsest-fresh-") as name:
        variables = {"PALIMPSEST_DATA_DIR": str(data), "PALIMPSEST_PORT": str(free_port())}
        seconds = []
        async with Reader(clone(Path(name)), tmp_path, reader_environment(tmp_path) | variables, {}) as reader:
            for step in (INSTALL, SERVE):
                start = time.perf_counter()
                await reader.run(step)
                seconds.append(time.perf_counter() - start)
    alone, serving = seconds
    print(f"a fresh clone serves after {serving:.1f} s, {serving / alone:.2f} times the {alone:.1f} s of pip alone")
    assert serving <= SERVES_IN_MAX * alone
