"""The middleware for the AI SDK, in agents of its versions 5, 6 and 7 with their own providers' packages."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.wire import polite, provider
from tests.typescript.conftest import NEEDS_NPM, PACKAGE, blocks, run, run_page
from tests.typescript.test_agents import CHARS_PER_TOKEN, WINDOW, diligent

pytestmark = [*NEEDS_NPM, pytest.mark.wing("audit"), pytest.mark.wing("recall")]
APIS = ("chat", "responses", "anthropic")
VERSIONS = [("5", "chat"), ("5", "anthropic"), ("6", "responses"), *(("7", api) for api in APIS)]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("version", "api"), VERSIONS)
async def test_forty_calls_in_a_quarter_of_their_window(
    built: Path, server: str, client: httpx.AsyncClient, version: str, api: str, streamed: bool
) -> None:
    async with provider(diligent) as models:
        arguments = [version, api, *(["streamed"] if streamed else [])]
        printed = await run(built, "ai-sdk.js", *arguments, PALIMPSEST_URL=server, **models.environment)
    done = json.loads(printed)
    assert done["said"] == "It is 21."
    assert max(len(json.dumps(body)) / CHARS_PER_TOKEN for body in models.requests) <= WINDOW
    session: dict[str, Any] = (await client.get("/v1/sessions/orders")).json()
    assert session["tokens"]["log"] >= 4 * WINDOW
    calls = (await client.get("/v1/sessions/orders/calls", params={"limit": 1000})).json()["items"]
    assert len(calls) == len(models.requests) == done["steps"]
    assert all(call["outcome"]["usage"]["input_tokens"] > 3 for call in calls)
    assert all(call["outcome"]["usage"]["cache_read_tokens"] == 3 for call in calls)
    last = (await client.get(f"/v1/sessions/orders/events/{session['head']}")).json()
    assert (last["type"], last["content"]) == ("assistant.message", "It is 21.")
    lines = (await client.get("/v1/sessions/orders/lines")).json()["items"]
    assert len(lines) == 1, lines


async def test_outages_overflows_broken_streams_and_parts_of_all_kinds(built: Path, server: str) -> None:
    await run(built, "ai-sdk.test.js", PALIMPSEST_URL=server)


async def test_its_page_runs_as_printed(built: Path, server: str) -> None:
    page = (PACKAGE.parents[1] / "docs" / "adapters" / "ai_sdk.md").read_text()
    async with provider(polite) as models:
        printed = await run_page(blocks(page), PALIMPSEST_URL=server, **models.environment)
    assert printed.count("It is 80,087.") == 2
