"""I6 on random histories, over HTTP and a real Postgres: every recorded call renders to the bytes that were sent.

Two servers on one database represent two processes: one has to read what the other holds in memory.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx
import pytest

from app import tokenizers
from app.resources.summaries.service import Compaction
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.store.ids import session_ref
from app.tenants import DEFAULT_TENANT
from app.tokenizers import Counting
from tests.conftest import serving
from tests.property.histories import HISTORIES, policy
from tests.support.examples import examples

pytestmark = pytest.mark.wing("audit")

FORMATS = ("openai", "openai-responses", "anthropic", "anthropic", "gemini", "blocks")
MODELS = (None, "gpt-4o", "gpt-4", "claude-sonnet-4-5", "claude-sonnet-4-5")
CACHES = {"claude": {"ttl_seconds": 3600, "minimum_tokens": 0}, "gpt": {"ttl_seconds": 300}}
"""Profiles with an hour's cache for one vendor, which its markers state."""
REFUSALS = ("/problems/context-infeasible", "/problems/nothing-to-send")

Json = dict[str, Any]


@dataclass
class Sent:
    """A context response."""

    call_id: str
    sha256: str
    request: str
    estimate: int


@dataclass
class Stage:
    """Two servers, and the service that writes summaries."""

    clients: Sequence[httpx.AsyncClient]
    compaction: Compaction


@pytest.fixture
async def stage(database_url: str, database: Database) -> AsyncIterator[Stage]:
    set_up = Settings(cache_table=CACHES)
    async with (
        serving(set_up, database_url) as first,
        serving(set_up, database_url) as second,
        httpx.AsyncClient(base_url=first, timeout=30) as one,
        httpx.AsyncClient(base_url=second, timeout=30) as other,
    ):
        counting = Counting(tokenizers.load(set_up.tiktoken_cache_dir))
        compaction = wiring.compaction(set_up, database, counting)
        yield Stage((one, other), compaction)
        await compaction.aclose()


class Run:
    """One session over time."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.random = random = Random(seed)
        self.stage, self.name = stage, f"r{seed}"
        self.path = f"/v1/sessions/{self.name}"
        self.form = random.choice(["events", "events", *HISTORIES])
        self.batches = HISTORIES[self.form](random, random.randint(4, 10))
        self.policies = [policy(random), policy(random)]
        self.sent: list[Sent] = []
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.asked: Json | None = None

    async def live(self) -> None:
        """Append all batches, with calls, compactions and changes of settings in between."""
        model = self.random.choice(MODELS)
        body = {"policy": self.policies[0]} | ({"model": model} if model else {})
        answer = await self.client().put(self.path, json=body)
        assert answer.status_code == 201, answer.text
        for batch in self.batches:
            await self.append(batch)
            for _ in range(self.random.choice([0, 1, 1, 2])):
                await self.ask()
            await self.decide()
            if self.random.random() < 0.15:
                await self.stage.compaction.run(session_ref(DEFAULT_TENANT, self.name))
            if self.random.random() < 0.02:
                await self.client().put(self.path, json={"policy": self.random.choice(self.policies)})

    def client(self) -> httpx.AsyncClient:
        return self.random.choice(self.stage.clients)

    async def append(self, batch: list[Json]) -> None:
        where, body = "events", {"events": batch}
        if self.form != "events":
            where, body = "messages", {"format": self.form, "messages": batch}
        answer = await self.client().post(f"{self.path}/{where}", json=body)
        assert answer.status_code == 201, answer.text

    async def ask(self) -> None:
        """Request a context, mostly with the previous parameters, so that epochs last."""
        random = self.random
        self.now += timedelta(minutes=random.choice([0, 0, 1, 1, 30, 90]))
        if self.asked is None or random.random() < 0.12:
            self.asked = {
                "view": random.choice(["main", "main", "title"]),
                "format": random.choice(FORMATS),
                "max_tokens": random.choice([1_500, 2_500, 4_000, 30_000]),
            } | random.choice([{}, {"model": random.choice(MODELS[1:])}, {"policy": random.choice(self.policies)}])
        body = self.asked | {"now": self.now.isoformat()}
        if random.random() < 0.1:
            body["injections"] = [{"name": "hook", "content": "remember\nthis"}, {"name": "h2", "content": "{}"}]
        if random.random() < 0.05:
            body["force"] = True
        if random.random() < 0.06:
            head = (await self.client().get(self.path)).json()["head"]
            body["at"] = random.randint(1, head)
        answer = await self.client().post(f"{self.path}/context", json=body)
        if answer.status_code == 200:
            found = answer.json()
            self.sent.append(
                Sent(found["call_id"], found["sha256"], request_of(answer.text), found["tokens"]["estimate"])
            )
        else:
            assert answer.json()["type"] in REFUSALS, answer.text

    async def decide(self) -> None:
        """Change layers, visibility, or the usage that providers report."""
        random, client = self.random, self.client()
        if random.random() < 0.08:
            kind, content = random.choice(["sources", "announce"]), random.choice(["found here", None])
            path = f"{self.path}/layers/{kind}"
            answer = await (client.put(path, json={"content": content}) if content else client.delete(path))
            assert answer.status_code < 300, answer.text
        if random.random() < 0.08:
            seqs = [random.randint(1, (await client.get(self.path)).json()["head"]) for _ in range(2)]
            body = {"hide": [{"seq": seqs[0], "replacement": random.choice([None, "[hidden]"])}], "force": True}
            body |= random.choice([{}, {"pin": [seqs[1]]}, {"show": [seqs[1]]}, {"unpin": [seqs[1]]}])
            answer = await client.patch(f"{self.path}/visibility", json=body)
            assert answer.status_code in (200, 404, 422), answer.text
        if random.random() < 0.1 and self.sent:
            tokens = int(self.sent[-1].estimate * random.choice([0.8, 1.5]))
            path = f"{self.path}/calls/{self.sent[-1].call_id}/outcome"
            answer = await client.post(path, json={"usage": {"input_tokens": tokens}})
            assert answer.status_code in (200, 409), answer.text  # 409 for a second report of a call

    async def fork(self) -> "Run":
        """Fork the session, and make calls in the fork."""
        head = (await self.client().get(self.path)).json()["head"]
        body = {"id": f"{self.name}-fork", "at": self.random.randint(1, head)}
        answer = await self.client().post(f"{self.path}/fork", json=body)
        assert answer.status_code == 201, answer.text
        fork = Run(self.stage, self.random.randint(0, 10**6))
        fork.name, fork.path, fork.sent, fork.now = body["id"], f"/v1/sessions/{body['id']}", [], self.now
        fork.form, fork.batches = "events", [[{"type": "user.message", "content": f"go on {n}"}] for n in range(4)]
        for batch in fork.batches:
            await fork.append(batch)
            await fork.ask()
        return fork

    async def check(self) -> None:
        """Assert that every call so far renders again on either server."""
        for sent in self.sent:
            answer = await self.client().get(f"{self.path}/calls/{sent.call_id}/context")
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert (found["reproduced"], found["redacted"]) == (True, [])
            assert found["sha256"] == found["recorded_sha256"] == sent.sha256
            assert request_of(answer.text) == sent.request

    async def check_manifests(self) -> None:
        """Assert that every event up to a call's head is accounted for once."""
        for sent in self.sent[::5]:
            answer = await self.client().get(f"{self.path}/calls/{sent.call_id}")
            assert answer.status_code == 200, answer.text
            manifest = answer.json()
            runs = [(run["from_seq"], run["to_seq"]) for run in manifest["dispositions"]]
            seqs = [seq for first, last in runs for seq in range(first, last + 1)]
            assert seqs == list(range(1, manifest["head"] + 1))


def request_of(text: str) -> str:
    """Return the request within a response, byte for byte."""
    start = text.index('"request":') + len('"request":')
    return text[start : start + json.JSONDecoder().raw_decode(text[start:])[1]]


SEEDS = [range(0, 5), range(5, 10), range(10, 15)]
"""Seeds in groups of five, of which `make test` runs the first."""


@pytest.mark.parametrize("seeds", [seeds[: examples(5, part=5)] for seeds in SEEDS], ids=str)
async def test_every_recorded_call_renders_again(stage: Stage, seeds: range) -> None:
    for seed in seeds:
        run = Run(stage, seed)
        await run.live()
        await run.check()
        await run.check_manifests()
        fork = await run.fork()
        await fork.check()
        await fork.check_manifests()
        assert len(run.sent) >= 5
