"""Recorded sessions through a real server: every context within target, valid for its provider, no event lost.

`make test-more NAME=long RECORDINGS=folder` names the folder of neutral JSONL files; our own
sample is replayed without it.
"""

from pathlib import Path

import httpx
import pytest

from palimpsest_tools.recordings.files import decode, parse
from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages, Recording
from tests.support import validators

SAMPLES = Path(__file__).parent.parent / "samples"
CHECKS = {
    "openai": validators.check_openai,
    "openai-responses": validators.check_openai_responses,
    "anthropic": validators.check_anthropic,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recording_file" in metafunc.fixturenames:
        folder = metafunc.config.getoption("--recordings") or SAMPLES
        metafunc.parametrize("recording_file", sorted(folder.glob("*.jsonl")), ids=lambda path: path.stem)


@pytest.fixture
def recordings(recording_file: Path) -> tuple[Recording, ...]:
    return parse(decode(recording_file.read_bytes()), recording_file.stem)


@pytest.mark.long
@pytest.mark.parametrize("form", CHECKS)
async def test_every_context_fits_and_is_valid(
    client: httpx.AsyncClient, recordings: tuple[Recording, ...], recording_file: Path, form: str
) -> None:
    for number, recording in enumerate(recordings):
        sid = f"{recording_file.stem}.{number}"
        size = await _replay(client, recording, f"{sid}.size", form, None)
        window = 60_000 if "coding" in recording_file.stem and size > 120_000 else max(3_000, size // 4)
        await _replay(client, recording, sid, form, window)


async def _replay(client: httpx.AsyncClient, recording: Recording, sid: str, form: str, window: int | None) -> int:
    """Append a recording; with a window, request a context at every call point. Returns the log's tokens."""
    fixed = 0
    sent = 0
    for step in recording.steps:
        if isinstance(step, AppendEvents):
            answer = await client.post(f"/v1/sessions/{sid}/events", json={"events": list(step.events)})
        elif isinstance(step, AppendMessages):
            body = {"format": step.format, "messages": list(step.messages)}
            answer = await client.post(f"/v1/sessions/{sid}/messages", json=body)
        elif window is not None:
            await _check(client, sid, form, window + fixed)
            continue
        else:
            continue
        assert answer.status_code == 201, answer.text
        sent += len(answer.json()["events"])
        if not fixed and window is not None:
            fixed = answer.json()["pressure"]["tokens"] if recording.system else 0
    session = (await client.get(f"/v1/sessions/{sid}")).json()
    assert session["head"] == sent
    return int(session["tokens"]["log"])


async def _check(client: httpx.AsyncClient, sid: str, form: str, window: int) -> None:
    params: dict[str, str | int] = {"format": form, "max_tokens": window}
    answer = await client.get(f"/v1/sessions/{sid}/context", params=params)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["tokens"]["estimate"] <= body["tokens"]["target"]
    CHECKS[form](body["request"])
