"""The client's README is true: its code runs as printed, in order, against a real server and stand-ins."""

import asyncio
import contextlib
import gc
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.client.wire import polite, provider

PAGE = Path(__file__).parent.parent.parent / "clients" / "python" / "README.md"
README = PAGE.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(blocks: list[str]) -> str:
    """Run the blocks as one program; return their output."""
    printed = io.StringIO()
    program: dict[str, Any] = {"__name__": "readme"}
    with contextlib.redirect_stdout(printed):
        for number, block in enumerate(blocks):
            exec(compile(block, f"README.md, block {number}", "exec"), program)
    return printed.getvalue()


@pytest.mark.wing("all")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_it_runs_as_printed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with provider(polite) as models:
        monkeypatch.setenv("PALIMPSEST_URL", server)
        for name, value in models.environment.items():
            monkeypatch.setenv(name, value)
        printed = await asyncio.to_thread(run, BLOCKS)
        gc.collect()  # a short program closes none of its clients; collect them here, and not in another test
    assert "It is 80,087." in printed
    assert printed.count("Hello there.") == 5
    assert "nothing was left out" in printed
    assert "event 4 (" in printed
    assert "the last event is" in printed
    assert "'input_tokens'" in printed
    assert "\nok\n" in printed
    assert "application/json" in printed
    assert len(models.requests) == 9


def test_the_ten_lines_that_name_us_are_ten() -> None:
    (block,) = [block for block in BLOCKS if "turn.results" in block]
    ours = [line for line in block.splitlines() if re.search(r"memory|call\.|reply|palimpsest", line)]
    assert len(ours) <= 10, ours


def test_its_links_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (PAGE.parent / target).exists(), target


def test_the_first_page_shows_the_same_lines() -> None:
    (block,) = [block for block in BLOCKS if "turn.results" in block]
    assert block[block.index("memory = ") :] in (PAGE.parent.parent.parent / "README.md").read_text()
