"""The TypeScript client's adapters in their frameworks: the AI SDK 5, 6 and 7, and Mastra."""

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


AGENTS = [*(("ai-sdk.js", version, api) for version, api in VERSIONS), ("mastra.js",)]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("agent", AGENTS, ids="-".join)
async def test_forty_calls_in_a_quarter_of_their_window(
    built: Path, server: str, client: httpx.AsyncClient, agent: tuple[str, ...], streamed: bool
) -> None:
    async with provider(diligent) as models:
        program, *arguments = [*agent, *(["streamed"] if streamed else [])]
        printed = await run(built, program, *arguments, PALIMPSEST_URL=server, **models.environment)
    done = json.loads(printed)
    assert done["said"].endswith("It is 21.")
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


@pytest.mark.parametrize("program", ["ai-sdk.test.js", "mastra.test.js", "openclaw.test.js", "opencode.test.js"])
async def test_outages_overflows_broken_streams_and_parts_of_all_kinds(built: Path, server: str, program: str) -> None:
    await run(built, program, PALIMPSEST_URL=server)


@pytest.mark.parametrize(("page", "answers"), [("ai_sdk", 2), ("mastra", 1)])
async def test_its_page_runs_as_printed(built: Path, server: str, page: str, answers: int) -> None:
    programs = blocks((PACKAGE.parents[1] / "docs" / "adapters" / f"{page}.md").read_text())
    async with provider(polite) as models:
        printed = await run_page(programs, PALIMPSEST_URL=server, **models.environment)
    assert printed.count("It is 80,087.") == answers
