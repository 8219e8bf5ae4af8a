"""Recorded sessions through import and export, and the export through both again.

`make test-more NAME=long RECORDINGS=folder` names the folder of neutral JSONL files; our own
samples are used without it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import outcome, palimpsest

SAMPLES = Path(__file__).parent.parent / "samples"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recording_file" in metafunc.fixturenames:
        folder = metafunc.config.getoption("--recordings") or SAMPLES
        metafunc.parametrize("recording_file", sorted(folder.glob("*.jsonl")), ids=lambda path: path.stem)


async def run(settings: Mapping[str, str], *arguments: str | Path) -> list[dict[str, Any]]:
    done = await outcome(await palimpsest(*map(str, arguments), settings=settings), seconds_max=500)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
async def test_an_export_of_recorded_sessions_gives_the_same_logs(
    server: str, recording_file: Path, tmp_path: Path
) -> None:
    settings = {"URL": server}
    *sessions, _ = await run(settings, "import", recording_file, "--json")
    names = [one["session"] for one in sessions]
    assert all(one["added"] == one["events"] for one in sessions)
    file = tmp_path / "export.jsonl"
    await run(settings, "export", *names, "-o", file)
    *again, _ = await run(settings, "import", file, "--json")
    assert [(one["session"], one["events"], one["added"]) for one in again] == [
        (one["session"], one["events"], 0) for one in sessions
    ]
    await run(settings, "import", file, "--prefix", "copy-", "--json")
    exported = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    copies = await run(settings, "export", *(f"copy-{name}" for name in names))
    assert copies == [line | {"id": f"copy-{line['id']}"} for line in exported]
