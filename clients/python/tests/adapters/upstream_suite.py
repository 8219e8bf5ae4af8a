"""Test suites of other projects, from the source package of the installed version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLIENT, ROOT = HERE.parents[1], HERE.parents[3]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::\S+)", re.MULTILINE)


def sources(distribution: str) -> Path:
    """Return the unpacked source package, downloaded once for each environment; skip the test if that fails."""
    number = version(distribution)
    name = f"{distribution.replace('-', '_')}-{number}"
    folder = Path(sys.prefix) / "sources"
    if not (folder / name).exists():
        pip = [ROOT / ".venv/bin/python", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        asked = [*pip, "--no-deps", "--no-binary", distribution, "--dest", folder, f"{distribution}=={number}"]
        try:
            subprocess.run(asked, check=True, capture_output=True, timeout=240)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"the sources of {distribution} cannot be fetched: {error}")
        shutil.unpack_archive(folder / f"{name}.tar.gz", folder)
    return folder / name


def failures(suite: Path, tests: Sequence[str], options: Sequence[str], server: str | None) -> tuple[set[str], int]:
    """Return the ids of the tests that fail twice, and the number that pass, with our adapter if a server is given.

    Failed tests are run again together: the Agents SDK gives a tool that ends late a tenth of a second of wall-clock
    time (`_FUNCTION_TOOL_POST_INVOKE_WAIT_SECONDS`), which a busy machine misses.
    """
    failed, passed = _run(suite, tests, options, server)
    if not failed:
        return failed, passed
    again, mended = _run(suite, sorted(failed), options, server)
    return failed & again, passed + mended


def _run(suite: Path, tests: Sequence[str], options: Sequence[str], server: str | None) -> tuple[set[str], int]:
    clean: Mapping[str, str] = {n: v for n, v in os.environ.items() if not n.startswith("PALIMPSEST_")}
    environment = {**clean, "PYTHONPATH": f"{CLIENT}:{HERE}", **({"PALIMPSEST_URL": server} if server else {})}
    command = [sys.executable, "-m", "pytest", *tests, *options, "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, f"--rootdir={suite}"], cwd=suite, env=environment, capture_output=True, text=True, timeout=900
    )
    assert re.search(r"\d+ (?:passed|failed)", done.stdout) is not None, done.stdout[-5_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    return set(_FAILED.findall(done.stdout)), int(passed[1]) if passed else 0
