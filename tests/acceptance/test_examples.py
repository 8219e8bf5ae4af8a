"""The agents of `examples/`: sixty turns with tools in a quarter of the required window, and a recall of the first."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from app.runtime.settings import Settings
from examples import anthropic_agent, openai_agent
from examples.memory import Json, Memory
from tests.conftest import serving
from tests.support.models import Models, models
from tests.support.processes import ROOT, Result, outcome

TURNS = 60
ASKED = 9
WINDOW = 9_000
WORDS = ("amber", "birch", "coral", "delta", "ember", "fjord", "grove", "heron")
SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
DESCRIPTION = "All that is known of an order."

Turn = Callable[[str], Awaitable[str]]
Begin = Callable[[httpx.AsyncClient, Models], AbstractAsyncContextManager[Turn]]


def gate_word(order: int) -> str:
    return f"{WORDS[order % 8]} {WORDS[order // 8 % 8]}"


async def lookup(order: int) -> str:
    """Return a long record, with the value that is asked for later in its middle."""
    lines = [
        f"Line {n} of order {order}: the goods were weighed, wrapped and put on shelf {n * order}." for n in range(24)
    ]
    lines.insert(12, f"The driver is told that the gate word of order {order} is {gate_word(order)}, and nothing else.")
    return "\n".join(lines)


@asynccontextmanager
async def with_openai(http: httpx.AsyncClient, fake_summarizers: Models) -> AsyncIterator[Turn]:
    memory = Memory(http, "s", "openai", "gpt-4o", WINDOW)
    tool: Json = {"type": "function", "function": {"name": "lookup", "description": DESCRIPTION, "parameters": SCHEMA}}
    await memory.begin("You look after orders.", [tool])
    async with AsyncOpenAI(base_url=f"{fake_summarizers.url}/v1", api_key="none", max_retries=0) as client:
        yield lambda text: openai_agent.turn(memory, client, "gpt-4o", {"lookup": lookup}, text)


@asynccontextmanager
async def with_anthropic(http: httpx.AsyncClient, fake_summarizers: Models) -> AsyncIterator[Turn]:
    memory = Memory(http, "s", "anthropic", "claude-sonnet-5-5", WINDOW)
    tool: Json = {"name": "lookup", "description": DESCRIPTION, "input_schema": SCHEMA}
    await memory.begin("You look after orders.", [tool])
    async with AsyncAnthropic(base_url=fake_summarizers.url, api_key="none", max_retries=0) as client:
        yield lambda text: anthropic_agent.turn(memory, client, "claude-sonnet-5-5", {"lookup": lookup}, text)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [with_openai, with_anthropic])
async def test_sixty_turns_at_a_quarter_of_the_room_and_a_value_from_fifty_turns_ago(
    client: httpx.AsyncClient, begin: Begin
) -> None:
    async with models(WINDOW) as stand_in, begin(client, stand_in) as turn:
        for order in range(1, TURNS):
            assert await turn(f"Look up order {order}.") == f"Order {order} is looked up."
        assert await turn(f"What is the gate word of order {ASKED}?") == gate_word(ASKED)
    assert stand_in.refused == 0
    assert [thought.tool for thought in stand_in.thoughts[-2:]] == ["recall", None]  # no longer visible
    tokens = (await client.get("/v1/sessions/s")).json()["tokens"]["log"]
    assert tokens >= 4 * WINDOW
    assert max(stand_in.sizes) > WINDOW / 2  # the window was used


@pytest.mark.wing("recall")
@pytest.mark.parametrize(("example", "keys"), [("openai_agent", "OPENAI"), ("anthropic_agent", "ANTHROPIC")])
async def test_an_example_finds_the_server_and_leaves_nothing_behind(
    database_url: str, example: str, keys: str
) -> None:
    key = "pal_a_key_of_our_own_0123456789"
    admin = {"Authorization": f"Bearer {key}"}
    async with (
        models(32_000) as stand_in,
        serving(Settings(api_key=key), database_url) as url,
        httpx.AsyncClient(base_url=url, headers=admin) as http,
    ):
        provider = {f"{keys}_API_KEY": "none", f"{keys}_BASE_URL": stand_in.url + ("/v1" if keys == "OPENAI" else "")}
        ours = {"PALIMPSEST_URL": url, "PALIMPSEST_API_KEY": key}

        async def run(*arguments: str) -> Result:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"examples.{example}", *arguments),
                env=os.environ | provider | ours,
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            return await outcome(process)

        asked = ("mine", "The gate word of order 3 is amber birch. What is the gate word of order 3?")
        done = await run(*asked)
        assert (done.returncode, done.stdout) == (0, "amber birch\n"), done.stderr
        assert (await http.get("/v1/sessions/mine")).status_code == 404
        done = await run(*asked, "--keep")  # the name is free
        assert (done.returncode, done.stdout) == (0, "amber birch\n"), done.stderr
        head = (await http.get("/v1/sessions/mine")).json()["head"]
        assert head == 4
        assert (await run(*asked)).returncode != 0  # an existing one is not erased
        assert (await http.get("/v1/sessions/mine")).json()["head"] == head
