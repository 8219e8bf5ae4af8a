"""Recorded sessions under each preset with a worker, ten windows long, as the rows of the five designs require.

Each is posted in bulk except for its end, which is appended call by call; both times a new view is requested.
`make test-more NAME=long RECORDINGS=folder` names the recordings.
"""

from pathlib import Path

import httpx
import pytest

from palimpsest_tools.recordings.files import decode, parse
from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages, Recording, Step
from tests.conformance.agent import WAIT_MS, Json
from tests.conformance.conftest import preset, running_worker
from tests.conformance.session_course import WorkerQueue, worker_queue
from tests.long.test_recordings import SAMPLES
from tests.support import validators
from tests.support.summarizers import Summarizers, summarizers

PRESETS = ("default", "timeline", "pipeline", "clip", "threshold")
LIVED = 12
"""Number of calls at the end that are made one by one."""
WINDOW_MIN = 6_000


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recording_file" in metafunc.fixturenames:
        folder = metafunc.config.getoption("--recordings") or SAMPLES
        metafunc.parametrize("recording_file", sorted(folder.glob("*.jsonl")), ids=lambda path: path.stem)


@pytest.fixture
def recordings(recording_file: Path) -> tuple[Recording, ...]:
    return parse(decode(recording_file.read_bytes()), recording_file.stem)


@pytest.mark.long
@pytest.mark.parametrize("name", PRESETS)
async def test_covered_events_are_shown_for_any_first_request(
    client: httpx.AsyncClient, database_url: str, recordings: tuple[Recording, ...], name: str
) -> None:
    async with summarizers() as model, running_worker(database_url, model), worker_queue(database_url) as done_working:
        for number, recording in enumerate(recordings):
            await _live(client, recording, f"{number}.{name}", name, model, done_working)


async def _live(
    client: httpx.AsyncClient, recording: Recording, sid: str, name: str, model: Summarizers, done_working: WorkerQueue
) -> None:
    size = await _size(client, recording, f"{sid}.size")
    window = max(WINDOW_MIN, size // 10)
    document = {**(await preset(client, name)), "window_tokens": window}
    (await client.put(f"/v1/sessions/{sid}", json={"policy": document})).raise_for_status()
    calls = [index for index, step in enumerate(recording.steps) if not isinstance(step, AppendEvents | AppendMessages)]
    begins = calls[-LIVED] if len(calls) > LIVED else 0
    for step in recording.steps[:begins]:
        await _append(client, sid, step)
    await done_working()
    if begins:
        await _check_context(client, sid, "first")
    for step in recording.steps[begins:]:
        if not await _append(client, sid, step):
            await _check_context(client, sid, "main")
    await done_working()
    await _check_context(client, sid, "another")


async def _size(client: httpx.AsyncClient, recording: Recording, sid: str) -> int:
    """Return the tokens of the session's log."""
    for step in recording.steps:
        await _append(client, sid, step)
    return int((await client.get(f"/v1/sessions/{sid}")).json()["tokens"]["log"])


async def _append(client: httpx.AsyncClient, sid: str, step: Step) -> bool:
    """Append a step; return whether it was an append."""
    if isinstance(step, AppendEvents):
        answer = await client.post(f"/v1/sessions/{sid}/events", json={"events": list(step.events)})
    elif isinstance(step, AppendMessages):
        body = {"format": step.format, "messages": list(step.messages)}
        answer = await client.post(f"/v1/sessions/{sid}/messages", json=body)
    else:
        return False
    assert answer.status_code == 201, answer.text
    return True


async def _check_context(client: httpx.AsyncClient, sid: str, view: str) -> None:
    """Request a context: it must be within its target, valid, account for every event, and drop nothing covered."""
    rows = (await client.get(f"/v1/sessions/{sid}/summaries", params={"live": True, "limit": 1000})).json()["items"]
    covered = max((row["to_seq"] for row in rows), default=0)
    asks = {"view": view, "format": "openai", "wait_ms": WAIT_MS}
    answer = await client.post(f"/v1/sessions/{sid}/context", json=asks, timeout=WAIT_MS / 1000)
    assert answer.status_code == 200, answer.text
    context: Json = answer.json()
    assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    validators.check_openai(context["request"])
    dropped = [row for row in context["evictions"] if row["disposition"] == "dropped"]
    lost = [row for row in dropped if row["from_seq"] <= covered and row["reducer"] not in ("fold", "expiry")]
    assert lost == [], (view, covered)
    proof = (await client.get(f"/v1/sessions/{sid}/coverage", params={"view": view})).json()
    assert proof["ok"], proof["faults"]
