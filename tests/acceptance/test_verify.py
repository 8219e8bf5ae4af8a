"""`palimpsest verify`: every recorded call of a running server rendered again, by the real command."""

import httpx
import pytest

from app.store.engine import Database
from tests.acceptance.transfers import command

pytestmark = pytest.mark.wing("audit")

CALLS = 5
LONG = "what the file says, line by line, and then some more of it\n" * 40


async def make_calls(client: httpx.AsyncClient, session: str) -> list[str]:
    """Append events with a context after each; return the ids of the calls."""
    calls = []
    for number in range(CALLS):
        event = {"type": "user.message", "content": f"{session} says {number}: {LONG}"}
        assert (await client.post(f"/v1/sessions/{session}/events", json={"events": [event]})).status_code == 201
        answer = await client.post(f"/v1/sessions/{session}/context", json={"format": "openai"})
        assert answer.status_code == 200
        calls.append(str(answer.json()["call_id"]))
    return calls


async def test_it_counts_reproduced_calls_and_names_the_others(
    server: str, client: httpx.AsyncClient, database: Database
) -> None:
    calls = {name: await make_calls(client, name) for name in ("a", "b", "c")}
    done = await command("verify", settings={"URL": server})
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("15 calls render again as they were sent, 0 but for what was erased since, 0 do not\n")

    assert (await client.delete("/v1/sessions/b/events/4")).status_code == 204
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute("UPDATE events SET body = replace(body::text, 'a says 3', 'a says 9')::json")
    done = await command("verify", settings={"URL": server})
    assert done.returncode == 1
    *failed, total = done.stdout.splitlines()
    assert total == "11 calls render again as they were sent, 2 but for what was erased since, 2 do not"
    assert {line.split()[1] for line in failed} == set(calls["a"][3:])
    assert all("not-reproducible" in line for line in failed)


async def test_nothing_recorded_is_nothing_lost(server: str) -> None:
    done = await command("verify", settings={"URL": server})
    assert (done.returncode, done.stdout.split()[0]) == (0, "0")
