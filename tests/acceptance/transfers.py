"""The commands `import` and `export`, for tests."""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from tests.support.processes import Result, outcome, palimpsest

SAMPLES = Path(__file__).parents[1] / "samples"

Run: TypeAlias = Callable[..., Awaitable[Result]]
Json: TypeAlias = dict[str, Any]


async def command(*arguments: str | Path, settings: Mapping[str, str]) -> Result:
    return await outcome(await palimpsest(*map(str, arguments), settings=settings))


def json_lines(done: Result) -> list[Json]:
    return [json.loads(line) for line in done.stdout.splitlines()]


async def imported(run: Run, *arguments: str | Path) -> dict[str, tuple[int, int]]:
    """Import successfully; return each session's number of events and of new ones."""
    done = await run("import", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    *sessions, total = json_lines(done)
    assert total["total"]["ok"]
    return {one["session"]: (one["events"], one["added"]) for one in sessions if "session" in one}


async def exported(run: Run, *sessions: str, format: str = "neutral") -> list[Json]:
    done = await run("export", *sessions, "--format", format)
    assert (done.returncode, done.stderr) == (0, "")
    return json_lines(done)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def log(client: httpx.AsyncClient, session: str) -> list[Json]:
    page = (await client.get(f"/v1/sessions/{session}/events", params={"limit": 1000})).raise_for_status().json()
    assert page["next_cursor"] is None
    events: list[Json] = page["items"]
    return events
