"""A gateway that holds a share of the sessions out: bytes, groups, and the measured difference."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from app.core.log.segments import is_held_out
from app.tenants import DEFAULT_TENANT
from tests.conftest import serving
from tests.support.gateways import NO_WAIT_POLICY, GatewayReader, gpt, settings
from tests.support.provider import Provider
from tests.support.requesting import Loopback

pytestmark = [pytest.mark.wing(name) for name in ("gateway", "ledger")]

SHARE: Final = 0.5
SESSIONS: Final = tuple(f"agent-{number}" for number in range(80))
HELD_OUT: Final = frozenset(name for name in SESSIONS if is_held_out(DEFAULT_TENANT, name, SHARE))
POLICY: Final = {"window_tokens": 6_000, **NO_WAIT_POLICY}
ROUNDS: Final = 4
Json = dict[str, Any]


@asynccontextmanager
async def _client(provider: Provider, database_url: str, share: float) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a server that holds out a share."""
    async with (
        serving(settings(provider, gateway_holdout=share), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, transport=Loopback()) as http,
    ):
        yield http


def _bodies(session: str) -> Sequence[bytes]:
    """Return the requests of an agent, in unusual spacing; agents read results of different sizes."""
    messages: list[Json] = []
    found = []
    for number in range(ROUNDS):
        text = f"{session}, {number}: " + f"line {number} of a long file. " * (200 + len(session) + number % 3)
        messages.append({"role": "user", "content": text})
        given = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": messages}
        found.append(json.dumps(given, indent=3, separators=(" , ", " :  ")).encode())
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "Hello."}]})
    return found


async def _send(http: httpx.AsyncClient, session: str, raw: bytes) -> httpx.Headers:
    """Send a request, and return the response's headers."""
    path, headers = f"/gateway/s/{session}/anthropic/v1/messages", {"content-type": "application/json"}
    answer = await http.post(path, content=raw, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers


async def _reported(http: httpx.AsyncClient, calls: int, behind: GatewayReader) -> Json:
    """Return the ledger once this number of calls has an outcome."""

    def reported(found: Json) -> bool:
        counts: int = found["totals"]["reported_calls"] + found["observed"]["reported_calls"]
        return counts == calls

    found = await behind.until(lambda: _ledger(http), reported)
    assert reported(found), found
    return found


async def _ledger(http: httpx.AsyncClient, **asked: str) -> Json:
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    answer = await http.get("/v1/audit/ledger", params={"since": since, **asked})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def test_the_difference_between_the_groups_is_measured(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    modes: dict[str, set[str]] = {}

    async def run(name: str) -> None:
        made = await http.put(f"/v1/sessions/{name}", json={"policy": POLICY})
        assert made.is_success, made.text
        modes[name] = {(await _send(http, name, raw))["x-palimpsest-mode"] for raw in _bodies(name)}

    async with _client(provider, database_url, SHARE) as http:
        for first in range(0, len(SESSIONS), 8):
            await asyncio.gather(*(run(name) for name in SESSIONS[first : first + 8]))
        ledger = await _reported(http, len(SESSIONS) * ROUNDS, behind)
        other_model = await _ledger(http, model="another")
    assert modes == {name: {"observed" if name in HELD_OUT else "context"} for name in SESSIONS}
    sent = {one.raw for one in provider.calls()}
    assert sent.issuperset(raw for name in HELD_OUT for raw in _bodies(name))
    assert not sent & {_bodies(name)[-1] for name in SESSIONS if name not in HELD_OUT}
    found = ledger["holdout"]
    for group, name, sums in (("held_out", True, ledger["observed"]), ("enforced", False, ledger["totals"])):
        sessions = sum((one in HELD_OUT) is name for one in SESSIONS)
        assert sessions >= 30
        assert (
            (found[group]["sessions"], found[group]["calls"])
            == (sessions, sums["calls"])
            == (sessions, sessions * ROUNDS)
        )
        assert found[group]["billed"] == pytest.approx(sums["billed"], abs=1)
    prices = [found[group]["billed"] / found[group]["calls"] for group in ("held_out", "enforced")]
    saved = found["saved_per_call"]
    assert saved["share"] == pytest.approx(1 - prices[1] / prices[0], abs=1e-4)
    assert 0 < saved["low"] < saved["share"] < saved["high"] < 1
    assert found["saved_per_session"]["share"] == pytest.approx(saved["share"], abs=1e-4)
    assert other_model["holdout"] is None


async def test_a_session_that_changes_its_group_is_not_compared(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    moved = next(
        name
        for name in SESSIONS
        if is_held_out(DEFAULT_TENANT, name, 0.5) and not is_held_out(DEFAULT_TENANT, name, 0.1)
    )
    stays = next(name for name in SESSIONS if is_held_out(DEFAULT_TENANT, name, 0.1))
    raw = _bodies(moved)[0]
    async with _client(provider, database_url, 0.0) as http:
        await _send(http, "before", raw)
        assert (await _ledger(http))["holdout"] is None
    async with _client(provider, database_url, 0.5) as http:
        assert [(await _send(http, name, raw))["x-palimpsest-mode"] for name in (moved, stays)] == ["observed"] * 2
    async with _client(provider, database_url, 0.1) as http:
        assert (await _send(http, moved, _bodies(moved)[1]))["x-palimpsest-mode"] == "context"
        found = (await _reported(http, 4, behind))["holdout"]
    assert (found["held_out"]["sessions"], found["enforced"]["sessions"]) == (1, 0)
    assert found["saved_per_call"] is None


async def test_a_held_out_session_is_left_to_its_provider(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    name = next(iter(HELD_OUT))
    words: Any = [{"role": "user", "content": "The code word is heliotrope."}]
    next_: Any = {"role": "user", "content": "And now?"}
    async with (
        _client(provider, database_url, 0.0) as http,
        gpt(str(http.base_url), {"x-palimpsest-session": name}) as client,
    ):
        item: Any = (
            (await client.responses.compact(model="gpt-5-mini", input=words)).output[0].model_dump(exclude_none=True)
        )
    async with _client(provider, database_url, SHARE) as http:
        counted = await http.post(
            f"/gateway/s/{name}/anthropic/v1/messages/count_tokens", content=(raw := _bodies(name)[0])
        )
        assert (counted.headers["x-palimpsest-mode"], provider.requests[-1].raw) == ("observed", raw)
        assert counted.headers["x-palimpsest-reason"] == "held-out"
        body = json.dumps({"model": "gpt-5-mini", "input": words}).encode()
        asked = await http.post(f"/gateway/s/{name}/openai/v1/responses/compact", content=body)
        headers = (asked.headers["x-palimpsest-mode"], asked.headers["x-palimpsest-reason"])
        assert headers == ("bypass", "compaction")
        assert provider.requests[-1].raw == body
        async with gpt(str(http.base_url), {"x-palimpsest-session": name}) as client:
            said = await client.responses.with_raw_response.create(model="gpt-5-mini", input=[item, next_])
        assert said.headers["x-palimpsest-mode"] == "context", "no provider can read the item"
        assert (await _ledger(http))["holdout"] is None
