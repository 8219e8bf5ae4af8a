"""Fixture of the built artefacts."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def dist() -> Iterator[Path]:
    """Return the folder of everything that .ci/build.py builds but the npm package."""
    with TemporaryDirectory(prefix="palimpsest-dist-") as name:
        folder = Path(name) / "dist"
        command = [sys.executable, str(ROOT / ".ci" / "build.py"), "--no-npm", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        print(f"\n{done.stdout}", end="")
        yield folder


def only(folder: Path, pattern: str) -> Path:
    """Return the only file of a folder that matches."""
    [found] = folder.glob(pattern)
    return found
