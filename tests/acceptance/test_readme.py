"""The README's steps with curl and the tutorial print what their pages show; test_pages.py runs all pages whole."""

import asyncio
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from app.runtime.settings import Settings
from tests.conftest import serving

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def block(name: str) -> str:
    """Return the code between two markers."""
    found = re.search(rf"<!-- walk:{name} -->\n```\w+\n(.*?)```\n<!-- /walk:{name} -->", README, re.DOTALL)
    assert found, f"the README has no walk {name!r}"
    return found.group(1)


async def run(*command: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the walk is one with curl")
async def test_the_curl_walk_works_as_printed(database_url: str) -> None:
    async with serving(Settings(), database_url) as url:
        script = "set -e\n" + block("curl").replace("http://127.0.0.1:8700", url)
        out = await run("bash", "-c", script)
    assert "Buy milk." in out
    assert '"estimator":"tiktoken:o200k_base"' in out
    assert '"view":"title"' in out


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.wing("recall")
@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial asks with curl")
async def test_the_tutorial_works_as_printed(database_url: str) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    steps = re.findall(r"<!-- step -->\n```sh\n(.*?)```", page, re.DOTALL)
    assert len(steps) == page.count("<!-- step -->") == 10
    async with serving(Settings(), database_url) as url:
        said = []
        for step in steps:
            script = step.replace("http://127.0.0.1:8700", url).replace(".venv/bin/palimpsest", "palimpsest")
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            said.append(await run("bash", "-c", f"set -e\ncd {ROOT}\n{script}", PALIMPSEST_URL=url, PATH=path))
    assert "30 events, 30 new" in said[0]
    assert json.loads(said[2])["evictions"] == []
    fits = json.loads(said[3])
    shown = (
        '"from_seq": 6, "to_seq": 12, "disposition": "stubbed", "reducer": "economics", "reason": "not_among_last_2"'
    )
    assert shown in json.dumps(fits["evictions"]) and shown in page
    window = said[4].splitlines()
    assert all(line in page.splitlines() for line in (window[0], window[-1])) and len(window[3]) == 120
    assert "epoch 1 (start): shown whole" in said[5] and "shown as a stub, by economics: not_among_last_2" in said[5]
    assert """Its request did not hold "unit='m'".""" in said[6] and "In its place: " in said[6]
    assert all(line in page for line in said[6].splitlines()[1:5])
    assert "class Gauge" in said[7]
    preview = json.loads(said[8][said[8].index('{"call_id"') :])
    assert (
        "class Gauge:\\n" in json.dumps(preview["request"])
        and preview["tokens"]["estimate"] <= preview["tokens"]["target"]
    )
    assert said[9] == ""
