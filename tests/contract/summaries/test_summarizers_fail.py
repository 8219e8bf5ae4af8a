"""Failing summarizers over real HTTP: no event is lost, coverage holds, and the run records what happened."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app import worker
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store import summaries
from app.store.engine import Database
from tests.conformance.agent import Agent, Json, request_text
from tests.contract.summaries.test_summaries import SMALL, append_turns, check_coverage
from tests.support import summarizers as stand_ins
from tests.support.pooler import pooled
from tests.support.queue import wait_until_idle
from tests.support.summarizers import Behaviour, Summarizers

pytestmark = pytest.mark.usefixtures("fast_retries")

SECONDS_MAX = 60
TURNS = 12
UNFIT = "the-text-that-no-model-may-see"
LARGER = {"window_tokens": 28_000}
BAD: dict[str, tuple[Callable[[], Behaviour], str]] = {
    "cut off": (lambda: stand_ins.cut_off(f"## Goal\n- {UNFIT}"), "cut off before its end"),
    "refused": (lambda: stand_ins.refusal(f"I can't help with {UNFIT}."), "was refused"),
    "empty": (stand_ins.empty, "was empty"),
    "an error": (lambda: stand_ins.error_text(f"Error: upstream connect error, {UNFIT}"), "was an error message"),
}


@pytest.fixture(params=["anthropic", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Scene:
    """A session that needs a summary, its requested run, and a worker that uses a provider."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        database: Database,
        database_url: str,
        fake_summarizers: Summarizers,
        provider: str,
    ) -> None:
        self._database, self._database_url, self._stand_in, self._provider = (
            database,
            database_url,
            fake_summarizers,
            provider,
        )
        self._http = http
        self.agent: Agent
        self._run = ""

    async def begin(self, turns: int = TURNS, **rules: Any) -> None:
        """Write the log and request the run; `rules` go into the policy's `summarize`."""
        top = {name: rules.pop(name) for name in ("window_tokens",) if name in rules}
        self.agent = await Agent.begin(self._http, SMALL | top | {"summarize": rules})
        await append_turns(self.agent, turns)
        self._run = (await self._http.post("/v1/sessions/s/compactions", json={})).json()["id"]

    @asynccontextmanager
    async def worked_on(self, **settings: Any) -> AsyncIterator[None]:
        """Run a worker until the block ends."""
        urls = {"anthropic_base_url": self._stand_in.anthropic_url, "openai_base_url": self._stand_in.openai_url}
        settings_of_worker = Settings(summarizer=self._provider, **urls, **settings)
        stop = asyncio.Event()
        running = asyncio.create_task(
            worker.run(self._database_url, stop, wiring.worker_work(pooled(settings_of_worker, self._database_url)))
        )
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(SECONDS_MAX):
                await running

    async def run(self) -> Json:
        """Return the run's current state."""
        answer = await self._http.get(f"/v1/sessions/s/compactions/{self._run}")
        answer.raise_for_status()
        found: Json = answer.json()
        return found

    async def until(self, *states: str, attempts: int = 0) -> Json:
        """Return the run once it is in one of these states and has had `attempts` attempts."""
        async with asyncio.timeout(SECONDS_MAX):
            while (run := await self.run())["state"] not in states or run["attempts"] < attempts:
                pass
            return run

    async def ended(self, **settings: Any) -> Json:
        """Let a worker finish all jobs and return the run."""
        async with self.worked_on(**settings):
            await wait_until_idle(self._database)
        run = await self.run()
        assert run["state"] in ("succeeded", "skipped", "failed")
        assert [row["id"] for row in await self._items("compactions")] == [self._run]
        return run

    async def summaries(self, status: str) -> list[Json]:
        """Return the summaries with a status and their texts, in log order."""
        listed = [row for row in await self._items("summaries") if row["status"] == status]
        rows = [(await self._http.get(f"/v1/sessions/s/summaries/{row['id']}")).json() for row in listed]
        return sorted(rows, key=lambda row: row["from_seq"])

    async def intact(self) -> Json:
        """Check that nothing is lost and nothing unfit is shown; return the context with all summaries folded."""
        log = await self.agent.log()
        assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
        assert [event["content"] for event in log if event["type"] == "user.message"][:TURNS] == [
            f"question {turn}: please look at src/part_{turn}.py" for turn in range(TURNS)
        ]
        live = await self.summaries("live")
        assert [row["from_seq"] for row in live] == [1, *(row["to_seq"] + 1 for row in live)][: len(live)]
        context = await self.agent.context(force=True)
        assert (await check_coverage(self._http))["head"] == len(log)
        assert UNFIT not in request_text(context)
        assert {row["id"] for row in context["summaries"]} <= {row["id"] for row in live}
        return context

    async def _items(self, what: str) -> list[Json]:
        found: list[Json] = (await self._http.get(f"/v1/sessions/s/{what}", params={"limit": 500})).json()["items"]
        return found


@pytest.fixture
def scene(
    client: httpx.AsyncClient, database: Database, database_url: str, fake_summarizers: Summarizers, provider: str
) -> Scene:
    return Scene(client, database, database_url, fake_summarizers, provider)


async def test_a_good_summary_is_shown(scene: Scene, fake_summarizers: Summarizers, provider: str) -> None:
    await scene.begin()
    run = await scene.ended()
    assert (run["state"], run["error"], run["attempts"]) == ("succeeded", None, 0)
    live = await scene.summaries("live")
    assert [row["id"] for row in live] == run["summaries"]
    assert {(row["summarizer"], row["degraded"]) for row in live} == {(provider, False)}
    assert len(fake_summarizers.requests) == len(live)
    assert "Finish what was asked." in request_text(await scene.intact())


async def test_requests_do_not_wait_for_a_slow_model(
    scene: Scene, fake_summarizers: Summarizers, provider: str
) -> None:
    answering = asyncio.Event()
    fake_summarizers.queue(stand_ins.slow(answering))
    await scene.begin()
    async with scene.worked_on():
        await fake_summarizers.wait_for_requests(1)
        assert await scene.agent.user("one more") == await scene.agent.assistant("and this") - 1
        context = await scene.agent.context()
        assert "and this" in request_text(context)
        assert (await scene.run())["state"] == "running"
        assert not answering.is_set()
        answering.set()
        run = await scene.until("succeeded")
    assert (await scene.summaries("live"))[0]["summarizer"] == provider
    assert run["error"] is None
    await scene.intact()


async def test_a_429_postpones_the_run(scene: Scene, fake_summarizers: Summarizers) -> None:
    fake_summarizers.queue(stand_ins.status(429, retry_after=0), stand_ins.status(429, retry_after=0))
    await scene.begin()
    run = await scene.ended()
    assert (run["state"], run["error"], run["attempts"]) == ("succeeded", None, 2)
    assert [row["degraded"] for row in await scene.summaries("live")] == [False]
    assert len(fake_summarizers.requests) == 3
    await scene.intact()


async def test_a_providers_retry_after_is_respected(
    scene: Scene, fake_summarizers: Summarizers, database: Database
) -> None:
    fake_summarizers.queue(stand_ins.status(429, retry_after=1000))
    await scene.begin()
    async with scene.worked_on():
        run = await scene.until("scheduled", attempts=1)
        assert "429" in run["error"]
        async with asyncio.timeout(SECONDS_MAX):
            while not (
                waiting := await database.fetch(
                    "SELECT execute_after - now() > '900 s' AS later FROM pgqueuer "
                    "WHERE entrypoint = 'compact' AND status = 'queued'"
                )
            ):
                pass
        assert [row["later"] for row in waiting] == [True]
        await scene.agent.user("one more")
        await scene.agent.context()
        assert len(fake_summarizers.requests) == 1
        assert await scene.summaries("live") == []
        await scene.intact()
        await database.execute("UPDATE pgqueuer SET execute_after = now() WHERE entrypoint = 'compact'")
        await scene.until("succeeded")
    assert [row["degraded"] for row in await scene.summaries("live")] == [False]
    await scene.intact()


@pytest.mark.parametrize("asked", ["86400", "1e12", "1e15", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_a_retry_after_is_capped_at_an_hour(
    scene: Scene, fake_summarizers: Summarizers, database: Database, client: httpx.AsyncClient, asked: str
) -> None:
    fake_summarizers.queue(stand_ins.status(429, retry_after=asked))
    await scene.begin()
    async with scene.worked_on():
        await scene.until("scheduled", attempts=1)
        async with asyncio.timeout(SECONDS_MAX):
            while not (
                waiting := await database.fetch(
                    "SELECT execute_after - now() BETWEEN '59 minutes' AND '1 hour' AS an_hour FROM pgqueuer "
                    "WHERE entrypoint = 'compact' AND status = 'queued'"
                )
            ):
                pass
        assert [row["an_hour"] for row in waiting] == [True]
        # A client's request overrides the delay.
        asked_for = await client.post("/v1/sessions/s/compactions", json={"wait_ms": 10_000})
        assert asked_for.json()["state"] == "succeeded"
    await scene.intact()


@pytest.mark.parametrize("failing", ["status", "timeout", "no answer of the protocol"])
async def test_after_repeated_failures_the_summary_is_extractive(
    scene: Scene, fake_summarizers: Summarizers, failing: str
) -> None:
    ways: dict[str, tuple[Behaviour, str]] = {
        "status": (stand_ins.status(500), "HTTP 500"),
        "timeout": (fake_summarizers.never(), "no answer within 0.3 seconds"),
        "no answer of the protocol": (stand_ins.body("<html>busy</html>", 200, "text/html"), "an answer that is no"),
    }
    fake_summarizers.default, why = ways[failing]
    await scene.begin(on_fail="extractive")
    run = await scene.ended(summarizer_timeout_seconds=0.3)
    assert (run["state"], run["attempts"]) == ("succeeded", 3)
    assert why in run["error"]
    assert len(fake_summarizers.requests) == 3
    live = await scene.summaries("live")
    assert {(row["summarizer"], row["degraded"]) for row in live} == {("extractive", True)}
    assert "src/part_0.py" in request_text(await scene.intact())


@pytest.mark.parametrize("code", [500, 401])
async def test_a_policy_may_forbid_extractive_replacements(
    scene: Scene, fake_summarizers: Summarizers, code: int
) -> None:
    fake_summarizers.default = stand_ins.status(code)
    await scene.begin(on_fail="unchanged")
    run = await scene.ended()
    assert (run["state"], run["summaries"]) == ("failed", [])
    assert str(code) in run["error"]
    assert len(fake_summarizers.requests) == (3 if code == 500 else 1)
    assert await scene.summaries("live") == []
    assert (await scene.intact())["summaries"] == []


@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_summary_is_retried_once(
    scene: Scene, fake_summarizers: Summarizers, provider: str, bad: str
) -> None:
    behaviour, complaint = BAD[bad]
    fake_summarizers.queue(behaviour())
    await scene.begin()
    run = await scene.ended()
    assert (run["state"], run["error"], run["attempts"]) == ("succeeded", None, 0)
    assert [row["degraded"] for row in await scene.summaries("live")] == [False]
    first, second = fake_summarizers.requests
    assert complaint not in first.prompt
    assert complaint in second.prompt
    (refused,) = await scene.summaries("refused")
    assert complaint in refused["complaints"][0]
    assert refused["summarizer"] == provider
    assert "Finish what was asked." in request_text(await scene.intact())


@pytest.mark.parametrize(("bad", "on_fail"), [*((bad, "extractive") for bad in BAD), ("cut off", "unchanged")])
async def test_two_bad_summaries_are_kept_and_never_shown(
    scene: Scene, fake_summarizers: Summarizers, provider: str, bad: str, on_fail: str
) -> None:
    behaviour, complaint = BAD[bad]
    fake_summarizers.default = behaviour()
    await scene.begin(on_fail=on_fail)
    run = await scene.ended()
    assert run["state"] == ("succeeded" if on_fail == "extractive" else "failed")
    assert complaint in run["error"]
    assert len(fake_summarizers.requests) == 2
    refused = await scene.summaries("refused")
    assert [complaint in row["complaints"][0] for row in refused] == [True, True]
    assert {(row["summarizer"], row["superseded_by"]) for row in refused} == {(provider, None)}
    assert all((UNFIT in row["text"]) == (bad != "empty") for row in refused)
    live = [(row["summarizer"], row["degraded"]) for row in await scene.summaries("live")]
    assert live == ([("extractive", True)] if on_fail == "extractive" else [])
    await scene.intact()


async def test_a_span_too_long_for_the_summarizer_is_split(
    scene: Scene, fake_summarizers: Summarizers, provider: str
) -> None:
    fake_summarizers.default = stand_ins.context_too_long(8_000)
    await scene.begin(3 * TURNS, **LARGER)
    run = await scene.ended()
    assert (run["state"], run["error"], run["attempts"]) == ("succeeded", None, 0)
    assert [len(asked.prompt) >= 8_000 for asked in fake_summarizers.requests[:3]] == [True, True, False]
    live = await scene.summaries("live")
    assert {(row["summarizer"], row["degraded"]) for row in live} == {(provider, False)}
    read = " ".join(asked.prompt for asked in fake_summarizers.requests if len(asked.prompt) < 8_000)
    assert all(f"question {turn}:" in read for turn in range(live[-1]["turns"][-1] - 1))
    await scene.intact()


async def test_the_next_request_keeps_to_the_window_that_an_error_names(
    scene: Scene, fake_summarizers: Summarizers
) -> None:
    fake_summarizers.default = stand_ins.context_too_long(8_000, named=2_700)
    await scene.begin(3 * TURNS, **LARGER)
    run = await scene.ended()
    assert (run["state"], run["error"]) == ("succeeded", None)
    assert [len(asked.prompt) >= 8_000 for asked in fake_summarizers.requests].index(False) == 1


async def test_a_span_too_long_in_every_size_gets_an_extractive_summary(
    scene: Scene, fake_summarizers: Summarizers
) -> None:
    fake_summarizers.default = stand_ins.context_too_long(1)
    await scene.begin(3 * TURNS, **LARGER)
    run = await scene.ended()
    assert (run["state"], run["attempts"]) == ("succeeded", 0)
    assert "400" in run["error"]
    live = await scene.summaries("live")
    assert {(row["summarizer"], row["degraded"]) for row in live} == {("extractive", True)}
    await scene.intact()


async def degraded_sessions(http: httpx.AsyncClient, *names: str) -> set[str]:
    """Return those of the sessions that have a degraded live summary."""
    found = set()
    for name in names:
        listed = (await http.get(f"/v1/sessions/{name}/summaries", params={"live": True, "limit": 500})).json()["items"]
        assert listed, name
        found |= {name for row in listed if row["degraded"]}
    return found


async def test_a_degraded_summary_that_cannot_be_rewritten_holds_up_no_other(
    client: httpx.AsyncClient,
    application: Database,
    database: Database,
    database_url: str,
    fake_summarizers: Summarizers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, fine = ("a", "b", "c"), fake_summarizers.default
    settings = Settings(summarizer="openai", openai_base_url=fake_summarizers.openai_url)
    work = wiring.worker_work(pooled(settings, database_url))
    fake_summarizers.default = stand_ins.status(400)
    for name in names:
        agent = await Agent.begin(client, SMALL | {"summarize": {"on_fail": "extractive"}}, name)
        await append_turns(agent, TURNS)
        await client.post(f"/v1/sessions/{name}/compactions", json={})
    stop = asyncio.Event()
    working = asyncio.create_task(worker.run(database_url, stop, work))
    await wait_until_idle(database)
    stop.set()
    await working
    assert await degraded_sessions(client, *names) == set(names)

    monkeypatch.setattr(worker, "REDO_AFTER_SECONDS", 0.0)
    assert work.compaction is not None
    compaction = work.compaction(application)
    asked = len(fake_summarizers.requests)
    fake_summarizers.default = stand_ins.status(503)
    await worker.rewrite_degraded(application, compaction)
    assert len(fake_summarizers.requests) == asked + 1  # an unavailable model is not called for every session
    assert await degraded_sessions(client, *names) == set(names)
    fake_summarizers.default = fine
    fake_summarizers.queue(stand_ins.status(400))
    await worker.rewrite_degraded(application, compaction)
    assert len(await degraded_sessions(client, *names)) == 1
    await worker.rewrite_degraded(application, compaction)
    assert await degraded_sessions(client, *names) == set()
    await compaction.aclose()


async def test_no_session_with_a_degraded_summary_is_always_behind_the_others(
    client: httpx.AsyncClient, application: Database, database: Database
) -> None:
    for name in ("a", "b", "c"):
        await Agent.begin(client, SMALL, name)
    await database.execute(
        "INSERT INTO summaries (session_id, id, tenant_id, cover_id, depth, from_seq, to_seq, text, digest, tokens,"
        " source_tokens, events, turns, starts_at, ends_at, summarizer, usage, degraded, status)"
        " SELECT session_id, gen_random_uuid(), tenant_id, session_id, 0, 1, 1, '', '{}', 1, 1, 1, '{}', now(), now(),"
        " 's', '{}', true, 'live' FROM sessions"
    )
    first = {(await summaries.degraded(application, -1.0, 1))[0] for _ in range(80)}
    assert len(first) == 3
