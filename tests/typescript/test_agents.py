"""Tool agents of forty calls in TypeScript, with each provider's SDK, in a quarter of the required window."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.client.wire import ANTHROPIC_TOO_LONG, TOO_LONG, ScriptedError, ScriptedReply, provider
from tests.typescript.conftest import NEEDS_NPM, run

pytestmark = [*NEEDS_NPM, pytest.mark.wing("audit"), pytest.mark.wing("recall")]

ORDERS = 40
WINDOW = 8_000
CHARS_PER_TOKEN = 3.5


def diligent(body: dict[str, Any]) -> ScriptedReply | ScriptedError:
    """Look up the orders in turn, then return the gate word of the third, recalling it if it is not visible."""
    if len(json.dumps(body)) / CHARS_PER_TOKEN > WINDOW:
        return ANTHROPIC_TOO_LONG if "max_tokens" in body else TOO_LONG
    text = json.dumps(body).replace("\\", "")
    looked = re.findall(r'"order": ?(\d+)|Called lookup[^.]*?(\d+)\.', text)  # in calls, and in summaries
    last = max((int(call or told) for call, told in looked), default=0)
    if last < ORDERS:
        return ScriptedReply(calls=[("lookup", {"order": last + 1})])
    seen = re.search(r"gate word of order 3 is (\d+)", text)
    if seen:
        return ScriptedReply(f"It is {seen[1]}.")
    return ScriptedReply(calls=[("recall", {"query": "gate word of order 3"})])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini"])
async def test_forty_calls_in_a_quarter_of_their_window(
    built: Path, server: str, client: Any, format: str, streamed: bool
) -> None:
    async with provider(diligent) as models:
        arguments = [format, *(["streamed"] if streamed else [])]
        printed = await run(built, "agents.js", *arguments, PALIMPSEST_URL=server, **models.environment)
    done = json.loads(printed)
    session = (await client.get("/v1/sessions/orders")).json()
    calls = (await client.get("/v1/sessions/orders/calls", params={"limit": 1000})).json()["items"]
    assert done["said"] == "It is 21."
    assert done["usage"]["input_tokens"] > 0
    assert done["leftOut"] > WINDOW
    assert session["tokens"]["log"] >= 4 * WINDOW
    assert max(len(json.dumps(body)) / CHARS_PER_TOKEN for body in models.requests) <= WINDOW
    assert len(calls) == len(models.requests)
    assert all(call["outcome"]["usage"]["input_tokens"] for call in calls)
