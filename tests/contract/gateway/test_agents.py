"""Coding agents at the gateway, with retries, broken streams, edits, compactions, side calls and sub-agents.

The provider refuses nothing, the model sees exactly what each agent means, and the lines' logs hold every conversation
sent and every complete reply. Passed-through requests and all responses have the same bytes on both sides, and the
provider's key is stored nowhere.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from tests.conftest import serving
from tests.support.coding_agent import Agent, Answers, run_together
from tests.support.gateways import KEY, gateway_reader, settings
from tests.support.provider import serving_provider
from tests.support.requesting import Loopback

pytestmark = pytest.mark.wing("gateway")

MARK = re.compile(r"#[a-z]*[0-9.]+#")
FORMS = ("anthropic", "openai", "openai-responses")
Logs = dict[str, list[list[dict[str, Any]]]]


def marks(value: Any) -> Iterator[str]:
    """Yield the marks in a request's conversation, in order."""
    yield from MARK.findall(json.dumps(value))


def texts(value: Any) -> Iterator[str]:
    """Yield the texts with a mark in a request's conversation or in events, in order."""
    if isinstance(value, str):
        if value.startswith("{"):
            yield from texts(json.loads(value))
        elif MARK.search(value):
            yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts(one)


def assert_whole(agent: Agent, meant: list[dict[str, Any]], sent: dict[str, Any]) -> None:
    """Assert that a request has every text that was meant, whole, once and in order."""
    found = sent["input" if agent.form == "openai-responses" else "messages"]
    assert list(texts(found)) == list(texts(meant))


def assert_reduced(agent: Agent, meant: list[dict[str, Any]], sent: dict[str, Any]) -> None:
    """Assert that a request repeats nothing, adds nothing, and ends as it was meant."""
    found = list(marks(sent["input" if agent.form == "openai-responses" else "messages"]))
    wanted = list(marks(meant))
    assert max(Counter(found).values(), default=0) == 1
    assert set(found) <= set(wanted)
    assert found[-1:] == wanted[-1:]


async def settled_logs(http: httpx.AsyncClient, database_url: str, agents: list[Agent]) -> Logs:
    """Return the logs of all lines by session, once they hold each complete reply."""
    wanted = {text for agent in agents for one in agent.exchanges for text in texts(one.reply)}

    def whole(logs: Logs) -> bool:
        return wanted <= {text for lines in logs.values() for events in lines for text in texts(events)}

    async with gateway_reader(database_url) as writes:
        logs = await writes.until(lambda: all_logs(http), whole)
    assert whole(logs), "a reply is lost"
    return logs


async def pages(http: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        query = {"limit": 1000, **({"cursor": cursor} if cursor else {})}
        page = (await http.get(path, params=query)).json()
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items


async def all_logs(http: httpx.AsyncClient) -> Logs:
    logs: Logs = {}
    for session in await pages(http, "/v1/sessions"):
        lines = await pages(http, f"/v1/sessions/{session['id']}/lines")
        logs[session["id"]] = [await pages(http, f"/v1/sessions/{line['id']}/events") for line in lines]
    return logs


def prefix_hashes(items: list[str]) -> Iterator[int]:
    """Yield a hash of each beginning of a list, from the empty one to the whole."""
    known = 0
    yield known
    for item in items:
        known = hash((known, item))
        yield known


def check_logs(agent: Agent, lines: list[list[dict[str, Any]]]) -> None:
    """Assert that each conversation sent, and each with its complete reply, is a beginning of a line, that no line
    repeats anything, and that nothing else was logged.
    """
    logged = [list(texts(events)) for events in lines]
    for line in logged:
        assert max(Counter(line).values(), default=0) <= 1, "a line holds something twice"
    found = {one for line in logged for one in prefix_hashes(line)}
    meant = [[*texts(one.messages), *texts(one.reply)] for one in agent.exchanges]
    lost = [
        one for one in [*meant, *(list(texts(one)) for one in agent.sent)] if [*prefix_hashes(one)][-1] not in found
    ]
    assert not lost, (len(lost), lost[0][-3:])
    sent = {text for one in agent.sent for text in texts(one) if MARK.findall(text)[0].startswith(f"#{agent.name}")}
    assert {text for line in logged for text in line if f"#{agent.name}" in text} == sent
    broken = {
        text for events in lines for one in events if one.get("metadata", {}).get("partial") for text in texts(one)
    }
    assert not broken & {text for one in agent.exchanges for text in texts(one.reply)}, (
        "a whole reply is called partial"
    )


async def check_key(database: Database, output: str, http: httpx.AsyncClient) -> None:
    """Assert that the provider's key is in no table, log line or metric."""
    tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = 0
    for table in tables:
        query = f"SELECT t::text AS row FROM {table['tablename']} t"
        every = [row["row"] for row in await database.fetch(query)]
        rows += len(every)
        assert not [row for row in every if KEY in row or KEY.encode().hex() in row], table["tablename"]
    assert rows
    assert KEY not in output + (await http.get("/metrics")).text


async def run_agents(
    database_url: str, database: Database, capsys: pytest.CaptureFixture[str], requests: int, *, window: int | None
) -> None:
    """Run an agent of each format and check all of the above."""
    async with (
        serving_provider() as provider,
        serving(settings(provider, gateway_context_seconds=60), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=90, transport=Loopback()) as http,
    ):
        answers = Answers(provider, 7, trouble=0.12)
        check = assert_whole if window is None else assert_reduced
        agents = [
            Agent("xyz"[n], form, f"{form}-agent", http, answers, n + 1, check, provider)
            for n, form in enumerate(FORMS)
        ]
        for agent in agents:
            agent.words_infeasible = 0 if window is None else 2 * window
            policy = {"window_tokens": window or 1_000_000, "reserve_tokens": 100}
            answer = await http.put(f"/v1/sessions/{agent.session}", json={"policy": policy, "model": "test-model"})
            assert answer.status_code == 201, answer.text
        await run_together(agents, requests)
        assert not provider.refused, provider.refused[:3]
        logs = await settled_logs(http, database_url, agents)
        for agent in agents:
            own = [lines for session, lines in logs.items() if session.startswith(agent.session)]
            check_logs(agent, [line for lines in own for line in lines])
        output = "".join(capsys.readouterr())
        assert window is None or "context-infeasible" in output, "what is logged was not seen"
        await check_key(database, output, http)


@pytest.mark.parametrize("window", [None, 3_000])
async def test_agents_work_through_the_gateway(
    database_url: str, database: Database, capsys: pytest.CaptureFixture[str], window: int | None
) -> None:
    await run_agents(database_url, database, capsys, 40, window=window)
