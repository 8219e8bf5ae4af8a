"""Each way of the README to a server, from the built artefacts alone, until it gave a first context: timed and weighed.

Times are printed and not compared: they depend on the machine and on its way to the index.
"""

import asyncio
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.artefacts.conftest import ROOT, only
from tests.artefacts.strangers import Clock, Stranger, megabytes
from tests.image import probe
from tests.support.folders import data_folder

pytestmark = [pytest.mark.artefacts, pytest.mark.wing("all")]

ENVIRONMENT_MB_MAX: Final = 250
PIPX: Final = "pipx==1.18.4"
ENVIRONMENT: Final = "import sys; print(sys.prefix)"
TOOLS: Final = "palimpsest-context[tools]"


def pythons() -> list[str]:
    """Return the newest interpreters of this machine from Python 3.11 on, one of each version, the tests' own first."""
    interpreter = runpy.run_path(str(ROOT / ".ci" / "interpreter.py"))["interpreter"]
    newer = [found for minor in range(sys.version_info.minor + 1, 16) if (found := interpreter(minor))]
    return list(dict.fromkeys([sys.executable, *newer]))


@pytest.fixture
def stranger(dist: Path) -> Iterator[Stranger]:
    """Return a stranger with an empty home."""
    with TemporaryDirectory(prefix="palimpsest-stranger-") as name:
        home = Path(name) / "home"
        (home / "bin").mkdir(parents=True)
        yield Stranger(home, dist)


@pytest.fixture
def data() -> Iterator[Path]:
    with data_folder() as place:
        yield place / "data"


async def first_context(stranger: Stranger, data: Path, *command: object, **variables: str) -> str:
    """Serve until a context was given, and stop; return the seconds until then, and those of the CPU for all of it."""
    arguments = ("serve", "--port", "0", "--data-dir", data)
    clock = Clock()
    async with stranger.serving(*command, *arguments, **variables) as url:
        await asyncio.to_thread(probe.main, url)
        until = time.monotonic()
    return clock.lap(until)


async def weigh(
    way: str,
    stranger: Stranger,
    data: Path,
    environment: Path,
    *command: object,
    empty: float = 0,
) -> None:
    """Give a first context from an installed environment; print the time and the size of both.

    `empty` is the size of the environment before the installation: of pip, and in Python 3.11 of setuptools.
    """
    size = megabytes(environment, bytecode=False) - empty
    started = await first_context(stranger, data, *command)
    bytecode = megabytes(environment) - megabytes(environment, bytecode=False)
    print(f"{way}: {started} more to a first context")
    print(f"{way}: environment {size:.0f} MB (and {empty:.0f} MB before), {bytecode:.0f} MB of bytecode")
    assert size <= ENVIRONMENT_MB_MAX


async def test_uvx(stranger: Stranger, data: Path) -> None:
    """One command on a machine with uv; afterwards the network is not needed."""
    for program in ("uv", "uvx"):
        (stranger.home / "bin" / program).symlink_to(Path(sys.executable).parent / program)
    uvx = ("uvx", "--python", base(), "--find-links", stranger.dist)
    clock = Clock()
    environment = stranger.run(*uvx, "--from", "palimpsest-context", "python", "-c", ENVIRONMENT).strip()
    print(f"uvx: {clock.lap()} until it is installed")
    await weigh("uvx", stranger, data, Path(environment), *uvx, "palimpsest-context")

    again = await first_context(stranger, data.parent / "again", *uvx, "palimpsest-context", UV_OFFLINE="1")
    print(f"uvx: {again} to a context of the next start, without the network")
    missing = stranger.fails(*uvx, "palimpsest-context", "sessions")
    assert "sessions is not installed: it is in palimpsest-context-tools" in missing
    assert "Usage" in stranger.run(*uvx, TOOLS, "sessions", "--help")


async def test_pipx(stranger: Stranger, data: Path) -> None:
    """Pipx installs by pip, for there is no uv."""
    own = stranger.home / "pipx"
    stranger.run(base(), "-m", "venv", own)
    stranger.run(own / "bin" / "pip", "install", "--quiet", "--no-cache-dir", PIPX)
    pipx = (own / "bin" / "pipx", "run", f"--pip-args=--find-links={stranger.dist}", "palimpsest-context")
    clock = Clock()
    assert stranger.run(*pipx, "--version").startswith("palimpsest ")
    print(f"pipx run: {clock.lap()} until it is installed")
    [script] = (path for path in stranger.home.rglob("bin/palimpsest-context") if own not in path.parents)
    await weigh("pipx run", stranger, data, script.parents[1], *pipx)


@pytest.mark.parametrize("python", pythons())
async def test_pip_in_an_environment(stranger: Stranger, data: Path, python: str) -> None:
    """The downloaded wheels are enough: they install, and the server counts tokens, without an index."""
    way = f"pip, {stranger.run(python, '--version').strip()}"
    place, wheels = stranger.home / "palimpsest", stranger.home / "wheels"
    stranger.run(python, "-m", "venv", place)
    pip = (place / "bin" / "pip", "--quiet", "--no-cache-dir", "--disable-pip-version-check")
    empty, clock = megabytes(place, bytecode=False), Clock()
    stranger.run(*pip, "download", "--only-binary=:all:", "--find-links", stranger.dist, "-d", wheels, TOOLS)
    downloaded = [wheel.stat().st_size for wheel in wheels.iterdir()]
    print(f"{way}: {clock.lap()} for a download of {sum(downloaded) / 1e6:.0f} MB in {len(downloaded)} wheels")
    stranger.run(*pip, "install", "--no-compile", "--no-index", "--find-links", wheels, TOOLS)
    print(f"{way}: {clock.lap()} until it is installed")
    await weigh(way, stranger, data, place, place / "bin" / "palimpsest-context", empty=empty)


def base() -> str:
    """Return the interpreter of which this environment was made."""
    return str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")


def test_the_wheel_is_small(dist: Path) -> None:
    size = only(dist, "palimpsest_context-*.whl").stat().st_size / 1e6
    print(f"wheel of the server: {size:.1f} MB")
    assert size < 6
