"""A session that many tests of requests share, which only read it or are refused."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx
import pytest

from tests.conftest import asking, asking_alone
from tests.contract.contexts.test_context import turn_of_rounds


class Unchanged(NamedTuple):
    """A client of a server with a session `s`, and the id of the session's call."""

    http: httpx.AsyncClient
    call: str


async def session(http: httpx.AsyncClient) -> str:
    """Create a session with a few turns and a call; return the id of the call."""
    assert (await http.post("/v1/sessions/s/events", json={"events": turn_of_rounds(3)})).status_code == 201
    made = await http.get("/v1/sessions/s/context", params={"max_tokens": 8000})
    return str(made.json()["call_id"])


@pytest.fixture(scope="session")
async def unchanged(postgres: str, template: str) -> AsyncIterator[Unchanged]:
    """A server, a session and a webhook that tests share whose requests are refused, or only read."""
    async with asking_alone(postgres, template) as http:
        await http.put("/v1/webhooks/w", json={"url": "http://127.0.0.1:1/", "events": ["compaction.finished"]})
        call = await session(http)
        before = (await http.get("/v1/sessions/s")).json()
        yield Unchanged(http, call)
        async with asking(str(http.base_url)) as later:  # an idle connection may have reached its end by now
            [after] = (await later.get("/v1/sessions")).json()["items"]
        assert (after["id"], after["head"]) == (before["id"], before["head"])
