"""The SDK's own tests of sessions, with ours in the place of its `SQLiteSession`. They come with its source package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLIENT, ROOT = HERE.parents[1], HERE.parents[3]
SUITE = ["tests/memory/test_session.py", "tests/memory/test_session_limit.py"]
OF_SQLITE = [
    "await_mutation",
    "connection",
    "corrupt",
    "file_lock",
    "write_lock",
    "closed_rejects",
    "rolls_back",
    "post_commit",
]
"""Parts of the names of tests that are about SQLite: its files, locks, rows and transactions."""


@pytest.fixture(scope="module")
def suite() -> Path:
    """The SDK's sources in the version that is installed, fetched once for each environment."""
    number = version("openai-agents")
    name = f"openai_agents-{number}"
    folder = Path(sys.prefix) / "sources"
    if not (folder / name).exists():
        pip = [ROOT / ".venv/bin/python", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        asked = [*pip, "--no-deps", "--no-binary", "openai-agents", "--dest", folder, f"openai-agents=={number}"]
        try:
            subprocess.run(asked, check=True, capture_output=True, timeout=240)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"the sources of openai-agents cannot be fetched: {error}")
        shutil.unpack_archive(folder / f"{name}.tar.gz", folder)
    return folder / name


def test_our_session_passes_them(suite: Path, server: str) -> None:
    environment = {**os.environ, "PALIMPSEST_URL": server, "PYTHONPATH": f"{CLIENT}:{HERE}"}
    others = " and ".join(f"not {part}" for part in OF_SQLITE)
    command = [sys.executable, "-m", "pytest", *SUITE, "-p", "upstream_session", "-k", others, "-c", os.devnull]
    done = subprocess.run(
        [*command, f"--rootdir={suite}", "-q"], cwd=suite, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 40
