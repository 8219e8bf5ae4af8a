"""Traces of the real processes as a collector gets them: from HTTP through SQL to the provider, without content."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import anthropic
import httpx
import openai
import pytest

from tests.acceptance.conftest import Commands
from tests.support.collector import Collector, ReceivedSpan, collector
from tests.support.provider import serving_provider
from tests.support.summarizers import summarizers

pytestmark = pytest.mark.wing("telemetry")
SECRET = "zanzibar"
"""A word in every message, which no trace may contain."""
KEY = "sk-the-providers-key-123456"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
FROM_OUTSIDE = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
async def collected(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    async with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield found


def spans_named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [one for one in spans if one.name == name]


def roots(spans: list[ReceivedSpan], one: ReceivedSpan) -> list[str]:
    """Return the names of a span and of all its ancestors, from below."""
    by_id = {span.id: span for span in spans if span.trace == one.trace}
    names = [one.name]
    while one.parent in by_id:
        one = by_id[one.parent]
        names.append(one.name)
    return names


def model_spans(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """Return the spans of requests to models."""
    return [one for one in spans if "gen_ai.operation.name" in one.attributes]


def ids(spans: list[ReceivedSpan]) -> set[str]:
    return {one.id for one in spans}


def header_of(one: ReceivedSpan) -> str:
    """Return the `traceparent` of a request below a span, without its flags."""
    return f"00-{one.trace}-{one.id}"


async def test_a_context_from_http_to_sql(commands: Commands, database_url: str, collected: Collector) -> None:
    api = await commands.start("api", DATABASE_URL=database_url)
    said = {"events": [{"type": "user.message", "content": f"My {SECRET}."}]}
    asked = "GET /v1/sessions/{sid}/context"
    async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as http:
        await http.get("/readyz")
        assert (await http.post("/v1/sessions/s/events", json=said)).status_code == 201
        sent = {**FROM_OUTSIDE, "X-Request-Id": "r-1"}
        made = await http.get("/v1/sessions/s/context", params={"max_tokens": 8_000}, headers=sent)
        assert made.status_code == 200
        assert (await http.get("/v1/sessions/none")).status_code == 404
    assert (await api.stop())[0] == 0  # remaining spans are sent at the end
    spans = collected.spans
    (served,) = spans_named(spans, asked)
    assert (served.kind, served.trace, served.parent, served.failed) == ("server", TRACE, PARENT, False)
    assert served.resource["service.name"] == "palimpsest"
    expected = {
        "http.request.method": "GET",
        "http.route": "/v1/sessions/{sid}/context",
        "http.response.status_code": 200,
        "url.path": "/v1/sessions/s/context",
        "url.scheme": "http",
        "palimpsest.request.id": "r-1",
        "palimpsest.session.name": "s",
    }
    assert expected.items() <= served.attributes.items()
    (plan,) = [one for one in spans_named(spans, "plan") if one.trace == TRACE]
    assert plan.parent == served.id
    assert plan.attributes["palimpsest.call.id"] == made.json()["call_id"]
    assert plan.attributes["palimpsest.tokens.sent"] == made.json()["tokens"]["estimate"]
    below = [one for one in spans if one.trace == TRACE and "db.system.name" in one.attributes]
    assert {(one.kind, one.attributes["db.system.name"], roots(spans, one)[-1]) for one in below} == {
        ("client", "postgresql", asked)
    }
    assert ("SELECT", "app.store.views.load") in {
        (one.attributes["db.operation.name"], one.attributes["code.function.name"]) for one in below
    }
    (refused,) = spans_named(spans, "GET /v1/sessions/{sid}")
    assert (refused.failed, refused.attributes["palimpsest.problem"]) == (False, "not-found")
    assert {roots(spans, one)[-1].split(" /")[0] for one in spans} == {"GET", "POST"}  # no span of the probe
    assert SECRET.encode() not in collected.raw and b"max_tokens" not in collected.raw


@pytest.mark.wing("gateway")
async def test_a_call_through_the_gateway_is_one_trace(
    commands: Commands, database_url: str, collected: Collector
) -> None:
    async with serving_provider() as provider:
        upstreams = {"GATEWAY_ANTHROPIC_URL": provider.url, "GATEWAY_OPENAI_URL": f"{provider.url}/v1"}
        api = await commands.start("api", DATABASE_URL=database_url, **upstreams)
        base = await api.url()
        headers = {"x-palimpsest-session": "s", **FROM_OUTSIDE}
        said = [{"role": "user", "content": f"My {SECRET}."}]
        claude = anthropic.AsyncAnthropic(
            base_url=f"{base}/gateway/anthropic", api_key=KEY, max_retries=0, default_headers=headers
        )
        async with claude:
            reply = await claude.messages.create(model="claude-haiku-5-5", max_tokens=99, messages=said)
        headers = {"x-palimpsest-session": "t"}
        gpt = openai.AsyncOpenAI(
            base_url=f"{base}/gateway/openai/v1", api_key=KEY, max_retries=0, default_headers=headers
        )
        async with gpt:
            async for _ in await gpt.chat.completions.create(model="gpt-5-mini", messages=said, stream=True):
                pass
        assert (await api.stop())[0] == 0
    spans = collected.spans
    (asked,) = spans_named(spans, "chat claude-haiku-5-5")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-haiku-5-5",
        "gen_ai.usage.input_tokens": reply.usage.input_tokens,
        "gen_ai.usage.output_tokens": reply.usage.output_tokens,
        "http.response.status_code": 200,
        "palimpsest.gateway.mode": "context",
        "palimpsest.session.name": "s",
    }
    assert expected.items() <= asked.attributes.items()
    route = "POST /gateway/{path:path}"
    assert (asked.kind, asked.trace, roots(spans, asked)) == ("client", TRACE, [asked.name, route])
    first, second = provider.calls()
    assert [value[:-3] for name, value in first.headers if name == "traceparent"] == [header_of(asked)]
    statements = [one for one in spans if one.trace == TRACE and "db.system.name" in one.attributes]
    assert {roots(spans, one)[-1] for one in statements} == {route}
    (streamed,) = spans_named(spans, "chat gpt-5-mini")
    assert (second.header("traceparent") or "")[:-3] == header_of(streamed)
    assert streamed.attributes["gen_ai.usage.output_tokens"] > 0
    for hidden in (SECRET, KEY, "Hello."):
        assert hidden.encode() not in collected.raw, hidden


@pytest.mark.wing("summarizers")
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_a_workers_summary_is_one_trace(
    provider: str, commands: Commands, database_url: str, collected: Collector
) -> None:
    async with summarizers() as models:
        url = {"anthropic": models.anthropic_url, "openai": models.openai_url}[provider]
        theirs = {f"{provider.upper()}_BASE_URL": url, f"{provider.upper()}_API_KEY": KEY, "SUMMARIZER": provider}
        api = await commands.start("api", DATABASE_URL=database_url)
        worker = await commands.start("worker", DATABASE_URL=database_url, LOG_JSON="true", LOG_LEVEL="info", **theirs)
        turns = [
            {"type": kind, "content": f"My {SECRET} {number}. " * 400}
            for number in range(20)
            for kind in ("user.message", "assistant.message")
        ]
        async with httpx.AsyncClient(base_url=await api.url(), timeout=60) as http:
            assert (await http.post("/v1/sessions/mine/events", json={"events": turns})).status_code == 201
            assert (await http.post("/v1/sessions/mine/compactions", json={})).status_code in (200, 202)
            spans = await collected.until(lambda spans: [one for one in model_spans(spans) if one.parent in ids(spans)])
        status, errors = await worker.stop()
        assert status == 0
        await api.stop()
    asked = model_spans(spans)[0]
    assert (asked.kind, roots(spans, asked)) == ("client", [asked.name, "compact"])
    assert asked.name == f"chat {models.requests[0].model}"
    assert (asked.attributes["gen_ai.provider.name"], asked.attributes["gen_ai.request.model"]) == (
        provider,
        asked.name[5:],
    )
    assert asked.attributes["gen_ai.usage.input_tokens"] > asked.attributes["gen_ai.usage.output_tokens"] > 0
    assert models.requests[0].headers["traceparent"][:-3] == header_of(asked)
    job = next(one for one in spans if one.id == asked.parent)
    assert (job.kind, job.attributes["palimpsest.session.name"]) == ("consumer", "mine")
    assert {"SELECT", "INSERT"} <= {
        one.attributes["db.operation.name"]
        for one in spans
        if one.trace == job.trace and "db.system.name" in one.attributes
    }
    ended = next(line for line in map(json.loads, errors) if line["event"] == "compaction ended")
    assert (ended["session"], ended["trace_id"]) == ("mine", job.trace)
    assert ended["job"] == job.attributes["palimpsest.job.id"]
    for hidden in (SECRET, KEY, "## Goal"):
        assert hidden.encode() not in collected.raw, hidden


async def test_a_job_is_linked_to_the_request_that_made_it_due(
    commands: Commands, database_url: str, collected: Collector
) -> None:
    api = await commands.start("api", DATABASE_URL=database_url)
    turns = [{"type": "user.message", "content": f"Turn {number}. " * 400} for number in range(40)]
    small = {"max_tokens": 8_000}
    async with httpx.AsyncClient(base_url=await api.url(), timeout=60) as http:
        for session in ("asked", "appended"):
            assert (await http.get(f"/v1/sessions/{session}")).status_code == 404
            assert (await http.post(f"/v1/sessions/{session}/events", json={"events": turns[:1]})).status_code == 201
            assert (await http.get(f"/v1/sessions/{session}/context", params=small)).status_code == 200
        assert (await http.post("/v1/sessions/asked/compactions", json={}, headers=FROM_OUTSIDE)).status_code == 202
        assert (await http.post("/v1/sessions/asked/compactions", json={})).status_code == 202  # already queued
        assert (await http.post("/v1/sessions/appended/events", json={"events": turns[1:]})).status_code == 201
    worker = await commands.start("worker", DATABASE_URL=database_url)
    # A session may have another job once its first is done: the first span of each is linked.
    spans = await collected.until(
        lambda spans: len({one.attributes["palimpsest.session.name"] for one in spans_named(spans, "compact")}) == 2
    )
    assert (await worker.stop())[0] == 0
    assert (await api.stop())[0] == 0
    linked = {one.attributes["palimpsest.session.name"]: one.links for one in spans_named(spans, "compact")[::-1]}
    (asked,) = [one for one in spans_named(spans, "POST /v1/sessions/{sid}/compactions") if one.trace == TRACE]
    *_, appended = [
        one
        for one in spans_named(spans, "POST /v1/sessions/{sid}/events")
        if one.attributes["palimpsest.session.name"] == "appended"
    ]
    assert linked == {"asked": [(TRACE, asked.id)], "appended": [(appended.trace, appended.id)]}
    assert TRACE not in {one.trace for one in spans_named(spans, "compact")}


async def test_a_collector_that_is_away_holds_up_nothing(
    commands: Commands, database_url: str, collected: Collector
) -> None:
    collected.refuses = True
    api = await commands.start("api", DATABASE_URL=database_url, LOG_JSON="true", LOG_LEVEL="warning")
    async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as http:
        for number in range(3):
            assert (await http.put(f"/v1/sessions/s{number}", json={})).status_code == 201
            asked = collected.asked
            async with asyncio.timeout(60), collected.changed:
                await collected.changed.wait_for(lambda asked=asked: collected.asked > asked)
        collected.refuses = False
        await http.put("/v1/sessions/seen", json={})
        await collected.until(lambda spans: spans_named(spans, "PUT /v1/sessions/{sid}"))
    status, errors = await api.stop()
    assert status == 0
    assert [json.loads(line)["event"] for line in errors] == [
        "traces cannot be sent; they are dropped until they can",
        "traces are sent again",
    ]


async def test_a_collector_that_does_not_answer_holds_up_no_end(
    commands: Commands, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never responds
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        api = await commands.start("api", DATABASE_URL=database_url, LOG_JSON="true", LOG_LEVEL="warning")
        async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as http:
            assert (await http.put("/v1/sessions/s", json={})).status_code == 201
        status, errors = await api.stop()
    assert status == 0
    assert [json.loads(line)["event"] for line in errors] == ["the last traces were not sent in time"]


async def test_the_standard_variables_hold(
    commands: Commands, database_url: str, collected: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "memory")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    api = await commands.start("api", DATABASE_URL=database_url)
    async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as http:
        await http.put("/v1/sessions/unseen", json={})
        await http.put("/v1/sessions/seen", json={}, headers=FROM_OUTSIDE)
    await api.stop()
    assert {one.trace for one in collected.spans} == {TRACE}
    resource = collected.spans[0].resource
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("memory", "test")
