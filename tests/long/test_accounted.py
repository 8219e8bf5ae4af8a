"""Coverage over recorded sessions: for every call, each token that was not sent verbatim is explained.

`make test-more NAME=long RECORDINGS=folder` names the folder of neutral JSONL files; our own
samples are replayed without it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages, Recording
from tests.long.test_recordings import pytest_generate_tests, recordings  # noqa: F401  # pytest finds them by name

WINDOW = 60_000
UNSEEN = ("verbatim", "not_rendered")
"""Dispositions without an explanation: shown whole, or never rendered."""

Json = dict[str, Any]


@dataclass
class Tally:
    """Totals over many calls."""

    calls: int = 0
    tokens: int = 0
    explained: int = 0
    saved: int = 0
    missing: int = 0
    """Difference between the evictions' tokens and the missing ones, over all calls."""


@pytest.mark.long
async def test_every_token_that_was_not_sent_verbatim_is_explained(
    client: httpx.AsyncClient,
    recordings: tuple[Recording, ...],  # noqa: F811  # the fixture, by its name
    recording_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = Tally()
    for number, recording in enumerate(recordings):
        await _replay(client, recording, f"{recording_file.stem}.{number}", tally)
    with capsys.disabled():
        share = tally.explained / tally.tokens if tally.tokens else 1.0
        print(
            f"\n{recording_file.stem}: {tally.calls} calls at {WINDOW} tokens, {tally.tokens:,} tokens not sent"
            f" verbatim, {share:.2%} explained; evictions name {tally.saved:,} tokens saved, off by {tally.missing:,}"
        )
    assert tally.explained == tally.tokens
    assert tally.missing <= 0.01 * max(1, tally.saved)


async def _replay(client: httpx.AsyncClient, recording: Recording, sid: str, tally: Tally) -> None:
    tokens: list[int] = []
    for step in recording.steps:
        if isinstance(step, AppendEvents):
            answer = await client.post(f"/v1/sessions/{sid}/events", json={"events": list(step.events)})
        elif isinstance(step, AppendMessages):
            body = {"format": step.format, "messages": list(step.messages)}
            answer = await client.post(f"/v1/sessions/{sid}/messages", json=body)
        else:
            answer = await client.get(f"/v1/sessions/{sid}/context", params={"max_tokens": WINDOW})
            assert answer.status_code == 200, answer.text
            manifest = (await client.get(f"/v1/sessions/{sid}/calls/{answer.json()['call_id']}")).json()
            _check(manifest, tokens, tally)
            continue
        assert answer.status_code == 201, answer.text
        tokens += [event["tokens"] for event in answer.json()["events"]]


def _check(manifest: Json, tokens: list[int], tally: Tally) -> None:
    tally.calls += 1
    runs = [row for row in manifest["evictions"] if row["reducer"] and row["reason"]]
    for run in manifest["dispositions"]:
        if run["disposition"] in UNSEEN:
            continue
        for seq in range(run["from_seq"], run["to_seq"] + 1):
            tally.tokens += tokens[seq - 1]
            named = any(
                row["from_seq"] <= seq <= row["to_seq"] and row["disposition"] == run["disposition"] for row in runs
            )
            tally.explained += tokens[seq - 1] if named else 0
    saved = sum(row["tokens_saved"] for row in manifest["evictions"])
    taken = sum(n for source, n in manifest["tokens"]["by_source"].items() if source not in ("ephemeral",))
    tally.saved += saved
    tally.missing += abs(sum(tokens[: manifest["head"]]) - taken - saved)
