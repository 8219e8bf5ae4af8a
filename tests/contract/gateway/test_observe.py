"""A gateway in the mode `observe`: bytes, records, sums and metrics."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from tests.conftest import serving
from tests.support.gateways import NO_WAIT_POLICY, GatewayReader, settings
from tests.support.provider import Provider, ProviderReply, ReceivedRequest
from tests.support.requesting import Loopback

pytestmark = [pytest.mark.wing(name) for name in ("gateway", "ledger", "audit")]

ROUNDS: Final = 14
POLICY: Final = {"window_tokens": 10_000, **NO_WAIT_POLICY}
Json = dict[str, Any]


def _bodies(rounds: int) -> Sequence[bytes]:
    """Return the requests of an agent, in unusual spacing."""
    messages: list[Json] = []
    found = []
    for number in range(rounds):
        messages.append({"role": "user", "content": f"{number}: " + f"line {number} of a long file. " * 250})
        given = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": messages}
        found.append(json.dumps(given, indent=3, separators=(" , ", " :  ")).encode())
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "Hello."}]})
    return found


@asynccontextmanager
async def _client(provider: Provider, database_url: str, mode: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a server."""
    async with (
        serving(settings(provider, gateway_mode=mode), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, transport=Loopback()) as http,
    ):
        yield http


async def _send(http: httpx.AsyncClient, session: str, raw: bytes, behind: GatewayReader) -> httpx.Response:
    """Send a request, and wait for its outcome."""
    path, headers = f"/gateway/s/{session}/anthropic/v1/messages", {"content-type": "application/json"}
    answer = await http.post(path, content=raw, headers=headers)
    assert answer.status_code == 200
    await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
    return answer


async def _run(http: httpx.AsyncClient, session: str, sent: Sequence[bytes], behind: GatewayReader) -> list[Json]:
    """Send a session's requests, and return the headers of the responses."""
    made = await http.put(f"/v1/sessions/{session}", json={"policy": POLICY})
    assert made.is_success, made.text
    return [dict((await _send(http, session, raw, behind)).headers) for raw in sent]


async def _ledger(http: httpx.AsyncClient) -> Json:
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    answer = await http.get("/v1/audit/ledger", params={"since": since})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


@pytest.mark.wing("telemetry")
async def test_an_observer_sends_the_clients_bytes_and_its_sums_are_those_of_an_enforced_run(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    bodies = _bodies(ROUNDS)
    async with _client(provider, database_url, "enforce") as http:
        await _run(http, "calibrating", bodies, behind)
        before = (await _ledger(http))["totals"]
        known = (await http.get("/v1/calibrations")).json()
    provider.requests.clear()
    async with _client(provider, database_url, "observe") as http:
        said = [one for name in ("a", "b") for one in await _run(http, name, bodies, behind)]
        assert [one.raw for one in provider.calls()] == [*bodies, *bodies]
        assert {one["x-palimpsest-mode"] for one in said} == {"observed"}
        assert not any("x-palimpsest-tokens-sent" in one for one in said)
        ledger = await _ledger(http)
        calls = (await http.get("/v1/gateway")).json()["calls"]
        learned = (await http.get("/v1/calibrations")).json()
        view = (await http.get("/v1/sessions/a/ledger", params={"view": "~observed"})).json()
        main = (await http.get("/v1/sessions/a/ledger")).json()
        metrics = (await http.get("/metrics")).text
    observed = ledger["observed"]
    assert ledger["totals"] == before
    assert observed["calls"] == observed["reported_calls"] == 2 * ROUNDS
    assert observed["input_tokens"] == 2 * sum(max(1, len(raw) // 4) for raw in bodies)
    assert all(int(one["x-palimpsest-potential-tokens"]) > 0 for one in said)
    assert {(one["tokens_sent"], one["mode"]) for one in calls} == {(None, "observed")}
    (model,), (before_it,) = learned["items"], known["items"]
    assert model["samples"] > before_it["samples"] and model["ratio"] == pytest.approx(before_it["ratio"], rel=0.02)
    assert view["totals"]["calls"] == view["totals"]["unreported_calls"] == ROUNDS
    assert main["totals"]["calls"] == 0
    counted = re.search(r"^palimpsest_potential_contexts_total (\S+)$", metrics, re.MULTILINE)
    assert counted is not None and float(counted[1]) >= 2 * ROUNDS
    async with _client(provider, database_url, "enforce") as http:
        sent = [one for name in ("c", "d") for one in await _run(http, name, bodies, behind)]
        enforced = (await _ledger(http))["totals"]
    billed = enforced["input_tokens"] - before["input_tokens"]
    print("potential", observed["potential_input_tokens"], "enforced", billed)
    assert {one["x-palimpsest-mode"] for one in sent} == {"context"}
    assert enforced["calls"] == 3 * ROUNDS and enforced["left_out_tokens"] > 0
    assert observed["potential_input_tokens"] == pytest.approx(billed, rel=0.02)


async def test_the_sums_of_an_unknown_model_are_those_of_an_enforced_run(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    bodies = _bodies(ROUNDS)
    async with _client(provider, database_url, "observe") as http:
        for name in ("a", "b"):
            await _run(http, name, bodies, behind)
        observed = (await _ledger(http))["observed"]
        (learned,) = (await http.get("/v1/calibrations")).json()["items"]
        await http.delete("/v1/calibrations")
    async with _client(provider, database_url, "enforce") as http:
        for name in ("c", "d"):
            await _run(http, name, bodies, behind)
        enforced = (await _ledger(http))["totals"]
        (known,) = (await http.get("/v1/calibrations")).json()["items"]
    print("unknown model: potential", observed["potential_input_tokens"], "enforced", enforced["input_tokens"])
    assert enforced["left_out_tokens"] > 0
    assert observed["potential_input_tokens"] == pytest.approx(enforced["input_tokens"], rel=0.02)
    assert learned["ratio"] == pytest.approx(known["ratio"], rel=0.02)


class _PrefixCache:
    """A provider's cache: it reads the longest marked prefix that an earlier request had marked, too."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def reply(self, request: ReceivedRequest) -> ProviderReply:
        """Return a reply with the usage of a request."""
        prefix, size, read, marked = "", 0, 0, 0
        own: list[str] = []
        for message in request.body["messages"]:
            blocks = message["content"]
            for block in blocks if isinstance(blocks, list) else [{"type": "text", "text": blocks}]:
                prefix += json.dumps({"role": message["role"], **block, "cache_control": None})
                size += len(block["text"])
                if "cache_control" in block:
                    read = size if prefix in self._known else read
                    marked = size
                    own.append(prefix)
        self._known.update(own)
        whole, read, written = len(request.raw) // 4, read // 4, (marked - read) // 4
        usage = {"input_tokens": whole - read - written, "output_tokens": 1}
        usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        said = {
            "id": f"msg_{len(self._known)}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5",
            "usage": usage,
        }
        said |= {"content": [{"type": "text", "text": "Hello."}], "stop_reason": "end_turn", "stop_sequence": None}
        return ProviderReply(raw=json.dumps(said).encode(), headers={"content-type": "application/json"})


async def test_the_price_of_the_contexts_is_that_of_an_enforced_run(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    bodies = _bodies(ROUNDS)
    async with _client(provider, database_url, "observe") as http:
        await _run(http, "a", bodies, behind)
        observed = (await _ledger(http))["observed"]
        await http.delete("/v1/calibrations")
    provider.choose = _PrefixCache().reply
    async with _client(provider, database_url, "enforce") as http:
        await _run(http, "b", bodies, behind)
        enforced = (await _ledger(http))["totals"]
    print("potential", observed["potential_billed"], "enforced", enforced["billed"], enforced)
    assert (observed["priced_calls"], observed["priced_billed"]) == (ROUNDS, observed["billed"])
    assert enforced["read_tokens"] > 0
    assert observed["potential_billed"] < 0.9 * observed["potential_input_tokens"]
    assert observed["potential_billed"] == pytest.approx(enforced["billed"], rel=0.02)


async def test_a_session_is_enforced_after_it_was_observed(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    bodies = _bodies(ROUNDS)
    async with _client(provider, database_url, "observe") as http:
        await _run(http, "switched", bodies[:-1], behind)
    async with _client(provider, database_url, "enforce") as http:
        always = (await _run(http, "always", bodies, behind))[-1]
        switched = await _send(http, "switched", bodies[-1], behind)
    assert switched.headers["x-palimpsest-mode"] == "context"
    assert provider.calls()[-1].raw != bodies[-1]
    tokens = int(switched.headers["x-palimpsest-tokens-sent"])
    assert tokens < int(switched.headers["x-palimpsest-tokens-wanted"])
    assert tokens <= 1.05 * int(always["x-palimpsest-tokens-sent"])


async def test_a_prompt_and_tools_that_were_replaced_are_not_left_out(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    """Claude Code replaces both when a session is continued."""
    messages: list[Json] = [{"role": "user", "content": "Hello."}]
    async with _client(provider, database_url, "observe") as http:
        for number in range(6):
            system = f"You are version {number // 3}. " + "Be careful. " * 2_000
            tools = [{"name": f"tool_{number // 3}_{n}", "input_schema": {"type": "object"}} for n in range(40)]
            given = {
                "model": "claude-sonnet-5",
                "max_tokens": 9,
                "messages": messages,
                "system": system,
                "tools": tools,
            }
            headers = (await _send(http, "s", json.dumps(given).encode(), behind)).headers
            assert int(headers["x-palimpsest-tokens-wanted"]) == int(headers["x-palimpsest-potential-tokens"])
            messages += [{"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}]
            messages += [{"role": "user", "content": "Go on."}]
        ledger = await _ledger(http)
        (model,) = (await http.get("/v1/calibrations")).json()["items"]
    assert ledger["observed"]["potential_input_tokens"] == ledger["observed"]["input_tokens"]
    assert model["margin"] < 0.2


async def test_with_nothing_left_out_an_append_only_bill_is_the_same(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    provider.choose = _PrefixCache().reply
    tools = [{"name": f"look_up_{n}", "input_schema": {"type": "object"}} for n in range(90)]
    messages: list[Json] = [{"role": "user", "content": "word " * 1_500}]
    async with _client(provider, database_url, "enforce") as http:
        for number in range(8):
            given = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": messages, "tools": tools}
            line = (await _send(http, "s", json.dumps(given).encode(), behind)).headers["x-palimpsest-line"]
            messages += [{"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}]
            messages += [{"role": "user", "content": f"{number}: " + "more " * 300}]
        totals = (await http.get(f"/v1/sessions/{line}/ledger")).json()["totals"]
    assert totals["expected"]["read_tokens"] > 3 * totals["expected"]["write_tokens"]
    assert totals["append_only"]["billed"] == pytest.approx(totals["expected"]["billed"], rel=0.02)
