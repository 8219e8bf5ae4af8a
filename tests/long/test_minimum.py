"""The minimum that a refusal names is exact on recorded sessions: `make test-more NAME=long RECORDINGS=folder`."""

from pathlib import Path

import httpx
import pytest

from palimpsest_tools.recordings.files import decode, parse
from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages, Recording
from tests.long.test_recordings import SAMPLES

SESSIONS = 14
WINDOWS = (100, 300, 500, 800, 1_200, 1_600, 2_000, 2_500, 3_000, 3_500, 4_000, 5_000, 6_000, 8_000, 12_000)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recording_file" not in metafunc.fixturenames:
        return
    folder = metafunc.config.getoption("--recordings") or SAMPLES
    metafunc.parametrize("recording_file", sorted(folder.glob("*.jsonl")), ids=lambda path: path.stem)


@pytest.fixture
def recordings(recording_file: Path) -> tuple[Recording, ...]:
    return parse(decode(recording_file.read_bytes()), recording_file.stem)[:SESSIONS]


@pytest.mark.long
async def test_every_target_from_the_named_minimum_on_succeeds(
    client: httpx.AsyncClient, recordings: tuple[Recording, ...]
) -> None:
    for number, recording in enumerate(recordings):
        path = f"/v1/sessions/{number}"
        for step in recording.steps:
            if isinstance(step, AppendEvents):
                answer = await client.post(f"{path}/events", json={"events": list(step.events)})
            elif isinstance(step, AppendMessages):
                body = {"format": step.format, "messages": list(step.messages)}
                answer = await client.post(f"{path}/messages", json=body)
            assert answer.status_code in (200, 201), answer.text
        least, refused = set(), []
        for window in WINDOWS:
            asked = {"format": "openai", "max_tokens": window}
            answer = await client.post(f"{path}/context:preview", json=asked)
            if answer.status_code == 422:
                assert answer.json()["type"] == "/problems/context-infeasible", answer.text
                least.add(answer.json()["minimum_tokens"])
                refused.append(answer.json()["target"])
        assert len(least) <= 1, number
        assert all(target < min(least) for target in refused), number
