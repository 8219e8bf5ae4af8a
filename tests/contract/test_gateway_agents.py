"""Coding agents at the gateway, with retries, broken streams, edits, compactions, side calls and sub-agents.

The provider refuses nothing, the model sees exactly what each agent means, and every line's log holds it once.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.settings import Settings
from tests.conftest import serving
from tests.support.coding_agent import Agent, Answers, live_together
from tests.support.gateways import behind
from tests.support.provider import Provider, serving_provider

MARK = re.compile(r"#[a-z]*[0-9.]+#")
FORMS = ("anthropic", "openai", "openai-responses")
Logs = dict[str, list[list[dict[str, Any]]]]


def texts(value: Any) -> Iterator[str]:
    """The marks in a request's conversation or in an event, in their order."""
    yield from MARK.findall(json.dumps(value))


def same(agent: Agent, meant: list[dict[str, Any]], sent: dict[str, Any]) -> None:
    """What was sent says what was meant: every mark, once, in order."""
    found = sent["input" if agent.form == "openai-responses" else "messages"]
    assert list(texts(found)) == list(texts(meant))


def no_more(agent: Agent, meant: list[dict[str, Any]], sent: dict[str, Any]) -> None:
    """What was sent says nothing twice, and nothing that was not meant; its end is whole."""
    found = list(texts(sent["input" if agent.form == "openai-responses" else "messages"]))
    wanted = list(texts(meant))
    assert max(Counter(found).values(), default=0) == 1
    assert set(found) <= set(wanted)
    assert found[-1:] == wanted[-1:]


async def settled(http: httpx.AsyncClient, database_url: str, agents: list[Agent]) -> Logs:
    """The logs of all lines, by session, once each reply that came whole is there."""
    wanted = {mark for agent in agents for one in agent.exchanges for mark in texts(one.reply)}

    def whole(logs: Logs) -> bool:
        return wanted <= {mark for lines in logs.values() for events in lines for mark in texts(events)}

    async with behind(database_url) as told:
        logs = await told.until(lambda: all_logs(http), whole)
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


async def lives(provider: Provider, database_url: str, requests: int, *, window: int | None) -> None:
    """Two agents of each format live; all that is held of them is checked."""
    settings = Settings(gateway_anthropic_url=provider.url, gateway_openai_url=provider.url, gateway_context_seconds=60)
    async with (
        serving(settings, database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=90, verify=False) as http,
    ):
        answers = Answers(provider, 7, trouble=0.12)
        check = same if window is None else no_more
        agents = [
            Agent("xyz"[n], form, f"agent-{form}", http, answers, n + 1, check, provider)
            for n, form in enumerate(FORMS)
        ]
        for agent in agents:
            policy = {"window_tokens": window or 1_000_000, "reserve_tokens": 100}
            answer = await http.put(f"/v1/sessions/{agent.session}", json={"policy": policy, "model": "test-model"})
            assert answer.status_code == 201, answer.text
        await live_together(agents, requests)
        assert not provider.refused, provider.refused[:3]
        assert all(set(agent.modes) == {"context"} for agent in agents), [agent.modes for agent in agents]
        logs = await settled(http, database_url, agents)
        for agent in agents:
            lines = [list(texts(events)) for events in logs[agent.session]]
            for marks in lines:
                assert max(Counter(marks).values()) == 1, "a line holds something twice"
            for one in agent.exchanges[-50:]:
                meant = [*texts(one.messages), *texts(one.reply)]
                found = logs if "apart" in json.dumps(one.messages) else {agent.session: logs[agent.session]}
                every = [list(texts(events)) for parts in found.values() for events in parts]
                assert any(marks[: len(meant)] == meant for marks in every), "an exchange is lost"


@pytest.mark.parametrize("window", [None, 3_000])
async def test_agents_live_through_the_gateway(database_url: str, window: int | None) -> None:
    async with serving_provider() as provider:
        await lives(provider, database_url, 40, window=window)
