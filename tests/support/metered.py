"""A scenario in which every metric is counted at least once, and a reader of the metrics endpoint."""

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.store.engine import Database
from tests.conformance.agent import Agent
from tests.support.gateways import KEY
from tests.support.queue import wait_until_idle
from tests.support.receiver import SECRET, Receiver

MODEL = "claude-sonnet-4-5"
POLICY = {"window_tokens": 6_000, "reserve_tokens": 0}
WORDS = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 8
TOO_LONG = {"status": 400, "message": "prompt is too long: 7001 tokens > 6000 maximum"}


async def run_scenario(http: httpx.AsyncClient, database: Database, receiver: Receiver, name: str) -> None:
    """Run the scenario as the session `name`; it needs a worker and a gateway to Anthropic."""
    hook = {"url": receiver.url, "events": ["compaction.finished"], "secret": SECRET}
    (await http.put("/v1/webhooks/h", json=hook)).raise_for_status()
    agent = await Agent.begin(http, POLICY, name, format="anthropic", model=MODEL)
    for turn in range(12):
        await agent.user(f"question {turn}: please look at src/part_{turn}.py")
        await agent.calls("read", f"turn {turn}: " + WORDS, {"path": f"src/part_{turn}.py"})
        await agent.assistant(f"Answer {turn}. " + WORDS)
        made = await agent.context()
        await _report(
            http, name, made, usage={"input_tokens": 50, "cache_read_tokens": made["tokens"]["estimate"] - 50}
        )
    made = await agent.context()  # nothing is new: served from memory
    await _report(http, name, made, error=TOO_LONG)
    await agent.context(retry_of=made["call_id"])
    await agent.context(422, max_tokens=40)
    assert (await http.get("/v1/sessions/nobody/context")).status_code == 404
    asked = await http.post(f"/v1/sessions/{name}/compactions", json={})
    assert asked.status_code in (200, 202), asked.text  # a worker may have finished by now
    await wait_until_idle(database)
    await receiver.called(1)
    count = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    answer = await http.post("/gateway/anthropic/v1/messages", json=count, headers={"x-api-key": KEY})
    assert answer.status_code == 200, answer.text


async def _report(http: httpx.AsyncClient, name: str, made: Any, **report: Any) -> None:
    answer = await http.post(f"/v1/sessions/{name}/calls/{made['call_id']}/outcome", json=report)
    assert answer.status_code == 200, answer.text


class Scrape:
    """The parsed response of /metrics."""

    def __init__(self, text: str) -> None:
        self.families = {one.name: one for one in text_string_to_metric_families(text)}

    @property
    def ours(self) -> dict[str, str]:
        """The types of Palimpsest's metrics by the names used in queries."""
        found = {name: one.type for name, one in self.families.items() if name.startswith("palimpsest_")}
        kinds = {name: kind for name, kind in found.items() if not name.endswith("_created")}
        return {f"{name}_total" if kind == "counter" else name: kind for name, kind in kinds.items()}

    @property
    def samples(self) -> set[str]:
        """The names of all series."""
        return {sample.name for one in self.families.values() for sample in one.samples}

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's series that have these labels."""
        found = [sample for one in self.families.values() for sample in one.samples if sample.name == name]
        return sum(one.value for one in found if labels.items() <= one.labels.items())


async def scrape(http: httpx.AsyncClient) -> Scrape:
    """Request and parse /metrics."""
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    return Scrape(answer.text)
