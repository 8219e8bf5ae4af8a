"""Earlier releases from this repository's history: their records, their files, and an environment that runs them."""

import asyncio
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tests.acceptance.conftest import Command
from tests.support.processes import environment

ROOT: Final = Path(__file__).parents[2]
LIST: Final = ROOT / "tests" / "migration" / "releases.toml"
PINNED: Final = re.compile(r"^([A-Za-z0-9_.\[\]-]+==[^\\\n]*?)\s*\\?$", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Release:
    """A recorded release; `schema` is the number of its newest migration."""

    version: str
    commit: str
    schema: str


def releases() -> list[Release]:
    """Return the recorded releases, oldest first."""
    return [Release(**row) for row in tomllib.loads(LIST.read_text())["release"]]


def git(*arguments: str) -> bytes | None:
    """Return the output of a git command; None if it fails, as without a repository or that commit."""
    try:
        return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def is_here(release: Release) -> bool:
    """Return whether this clone's history contains the release."""
    return git("cat-file", "-e", f"{release.commit}^{{commit}}") is not None


@dataclass(frozen=True)
class Installed:
    """A folder with a release's files, and a Python with its requirements."""

    folder: Path
    python: str

    async def start(self, *arguments: str, **settings: str) -> Command:
        """Start a `palimpsest` command of the release; `settings` are named without their prefix."""
        process = await asyncio.create_subprocess_exec(
            *(self.python, "-m", "app.cli", *arguments),
            env=environment({"PORT": "0", **settings}) | {"PYTHONPATH": str(self.folder)},
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return Command(process)


def install(release: Release, folder: Path) -> Installed:
    """Unpack a release into an empty folder, with an environment of its own if it pins other versions than this one."""
    archive = git("archive", "--format=tar", release.commit)
    assert archive is not None, release
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    lock = folder / "requirements" / "runtime.lock"
    return Installed(folder, sys.executable if suits(lock.read_text()) else _environment(folder, lock))


def suits(lock: str) -> bool:
    """Return whether this environment has the exact versions of a lock file."""
    pinned = [Requirement(line) for line in PINNED.findall(lock)]
    assert pinned
    return all(_has(one) for one in pinned if one.marker is None or one.marker.evaluate())


def _has(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _environment(folder: Path, lock: Path) -> str:
    python = folder / ".venv" / "bin" / "python"
    vocabulary = "requirements" if (folder / "requirements" / "vocabulary.py").exists() else "app"  # 0.3.0 and before
    uv = (sys.executable, "-m", "uv")
    for command in (
        (*uv, "venv", "--quiet", "--python", sys.executable, str(folder / ".venv")),
        (*uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(lock)),
        (*uv, "pip", "install", "--quiet", "--python", str(python), "pip"),  # downloads the vocabularies
        (str(python), "-m", f"{vocabulary}.vocabulary"),
    ):
        subprocess.run(command, cwd=folder, check=True)
    return str(python)
