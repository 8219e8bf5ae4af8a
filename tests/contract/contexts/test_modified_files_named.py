"""The note on dropped events names the files modified in them, unless a summary does."""

import json
from collections.abc import Iterable

import httpx
import pytest

from app.store.engine import Database
from tests.contract.contexts.test_context import append, context, turn_of_rounds

UNSUMMARIZED = {"summarize": {"enabled": False}}


def edits(paths: Iterable[str], *, error: bool = False) -> list[dict]:
    """Return a call and its result for each file."""
    events: list[dict] = []
    for path in paths:
        call = {"type": "tool.call", "call_id": f"edit {path}", "tool": "write_file"}
        events += [
            {**call, "arguments": {"path": path, "content": "code " * 20}},
            {"type": "tool.result", "call_id": f"edit {path}", "content": "done", "is_error": error},
        ]
    return events


@pytest.mark.parametrize("turns", [10, 60], ids=["read", "unread"])
async def test_the_note_names_the_files_modified_in_dropped_events(client: httpx.AsyncClient, turns: int) -> None:
    paths = [f"/srv/app/module_{number}.py" for number in range(12)]
    await client.put("/v1/sessions/s", json={"policy": UNSUMMARIZED})
    await append(client, [{"type": "user.message", "content": "Begin."}, *edits(paths), *edits(["/no"], error=True)])
    for turn in range(turns):
        await append(client, turn_of_rounds(5, first=5 * turn))
    body = await context(client, max_tokens=4_000)
    shown = json.dumps(body["request"])
    assert body["evictions"]
    assert [path for path in paths if path not in shown] == []
    assert "/no" not in shown
    for turn in range(turns, turns + 10):  # files dropped later do not displace them
        await append(client, turn_of_rounds(5, first=5 * turn))
    shown = json.dumps((await context(client, max_tokens=4_000))["request"])
    assert [path for path in paths if path not in shown] == []


async def test_of_many_modified_files_the_note_names_the_newest(client: httpx.AsyncClient) -> None:
    paths = [f"/srv/app/module_{number}.py" for number in range(300)]
    await client.put("/v1/sessions/s", json={"policy": UNSUMMARIZED})
    await append(client, [{"type": "user.message", "content": "Begin."}, *edits(paths)])
    for turn in range(10):
        await append(client, turn_of_rounds(5, first=5 * turn))
    shown = json.dumps((await context(client, max_tokens=4_000))["request"])
    named = [path for path in paths if path in shown]
    assert named == paths[-24:]


async def test_a_redacted_path_is_removed_from_the_note(client: httpx.AsyncClient, database: Database) -> None:
    await client.put("/v1/sessions/s", json={"policy": UNSUMMARIZED})
    await append(client, [{"type": "user.message", "content": "Begin."}, *edits(["/srv/secret.py", "/srv/plain.py"])])
    for turn in range(10):
        await append(client, turn_of_rounds(5, first=5 * turn))
    assert "/srv/secret.py" in json.dumps((await context(client, max_tokens=4_000))["request"])
    assert (await client.delete("/v1/sessions/s/events/2")).status_code == 204
    stored = await database.fetch("SELECT frontier::text FROM epochs")
    assert stored
    assert not any("secret" in row["frontier"] for row in stored)
    shown = json.dumps((await context(client, max_tokens=4_000))["request"])
    assert "/srv/secret.py" not in shown
    assert "/srv/plain.py" in shown


@pytest.mark.wing("audit")
async def test_rendering_a_call_again_reports_redacted_paths_of_its_note(client: httpx.AsyncClient) -> None:
    await client.put("/v1/sessions/s", json={"policy": UNSUMMARIZED})
    paths = ["/srv/secret.py", "/srv/plain.py", "/srv/other.py"]
    await append(client, [{"type": "user.message", "content": "Begin."}, *edits(paths)])
    for turn in range(10):
        await append(client, turn_of_rounds(5, first=5 * turn))
    sent = await context(client, max_tokens=4_000)
    for redacted in ([2], [2, 6]):
        assert (await client.delete(f"/v1/sessions/s/events/{redacted[-1]}")).status_code == 204
        answer = await client.get(f"/v1/sessions/s/calls/{sent['call_id']}/context")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["reproduced"], found["redacted"]) == (False, redacted)
        assert "/srv/secret.py" not in answer.text
        assert ("/srv/other.py" in answer.text) == (redacted == [2])
        assert "/srv/plain.py" in answer.text
