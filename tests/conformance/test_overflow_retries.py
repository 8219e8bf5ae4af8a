"""S0.17, S1.6, S4.7: the only retry of a refused call keeps the newest part, uses its room, and compacts once."""

from dataclasses import dataclass
from itertools import pairwise

import httpx
import pytest

from app.core.policy.policy import PRESETS
from app.core.tokens.budget import auto_keep
from tests.conformance.agent import Agent, Json, evicted_seqs
from tests.conformance.conftest import runs
from tests.conformance.session_course import turn
from tests.conformance.test_s0_overflow import report_outcome
from tests.support.queue import worker_queue

UNNUMBERED = "Your input exceeds the context window of this model. Please adjust your input and try again."
LINES = 30
TURN_TOKENS = 620
"""The approximate tokens of a turn of LINES by `gpt-4o`'s tokenizer."""
FILLED = 0.6
"""The share of the window that the session fills when it is refused."""
WAYS = ("bulk", "lived")
QUICK = [(preset, 32_000, 0.0, "bulk") for preset in PRESETS] + [("threshold", 12_000, 2.0, "bulk")]
ALL = [
    (preset, window, over, way)
    for preset in PRESETS
    for window in (24_000, 60_000, 128_000, 200_000)
    for over in (0.0, 1.1)
    for way in WAYS
] + [("threshold", window, 2.0, "bulk") for window in (16_000, 24_000, 32_000)]


@dataclass(frozen=True)
class RetriedCall:
    """A refused context, its retry, each event's tokens, and each event's disposition in the retry."""

    refused: Json
    retry: Json
    tokens: dict[int, int]
    turns: dict[int, int]
    results: set[int]
    dispositions: dict[int, str]
    ratio: float
    """The provider's tokens per estimated token, from the refusal's number; 1 without a number."""

    @property
    def newest_whole(self) -> list[int]:
        """The newest events that the retry shows as the refused context did, without a gap."""
        whole, before = [], evicted_seqs(self.refused, "stubbed")
        for seq in sorted(self.tokens, reverse=True):
            if self.dispositions[seq] != "verbatim" and seq not in before:
                break
            whole.append(seq)
        return whole

    @property
    def next_unit(self) -> int:
        """The tokens of the next older unit: a call and its result, or one message."""
        seq = min(self.newest_whole) - 1
        return self.tokens.get(seq, 0) + (self.tokens.get(seq - 1, 0) if seq in self.results else 0)


async def retry_refused_call(client: httpx.AsyncClient, preset: str, window: int, over: float, way: str) -> RetriedCall:
    """Refuse a session at FILLED of its window, naming `over` windows unless 0, and request the retry."""
    agent = await Agent.begin(client, preset, model="gpt-4o", max_tokens=window)
    turns = int(FILLED * window / TURN_TOKENS)
    context: Json = {}
    for number in range(0, turns, 1 if way == "lived" else 100):
        last = number + 1 if way == "lived" else min(number + 100, turns)
        await agent.post(*(event for one in range(number, last) for event in turn(one, LINES)))
        if way == "lived":
            context = await agent.context()
    await agent.user("and now?")
    context = await agent.context()
    sent = int(over * window)
    number = f" ({sent} tokens > {window} maximum)" if over else ""
    verdict = await report_outcome(client, context, {"error": {"status": 400, "message": UNNUMBERED + number}})
    assert verdict["action"] == "retry"
    retry = await agent.context(**{**verdict["next"]["body"], "wait_ms": 60_000})
    proof = (await client.get("/v1/sessions/s/coverage")).json()
    assert proof["ok"], proof["faults"]
    shown = {seq: row["disposition"] for row in proof["runs"] for seq in range(row["from_seq"], row["to_seq"] + 1)}
    log = await agent.log()
    tokens, turns_of = {e["seq"]: e["tokens"] for e in log}, {e["seq"]: e["turn"] for e in log}
    results = {e["seq"] for e in log if e["type"] == "tool.result"}
    ratio = sent / context["tokens"]["estimate"] if over else 1.0
    return RetriedCall(context, retry, tokens, turns_of, results, shown, ratio)


def keeps_newest_part(found: RetriedCall, preset: str, window: int) -> bool:
    """Return whether the retry shows the newest part that a preset keeps, as far as a summary leaves room."""
    whole = found.newest_whole
    turns = {found.turns[seq] for seq in whole[:-1]} or {0}
    if preset == "pipeline":  # two turns
        return len({found.turns[seq] for seq in whole}) >= 2 and max(found.turns.values()) in turns
    if preset == "clip":
        return len(whole) >= 5
    target, ratio = found.retry["tokens"]["target"], found.ratio
    full = found.refused["tokens"]["target"]
    ours = min(0.3 * full, 16_000 * ratio)
    keep = {"default": ours, "unattended": ours, "timeline": 0.7 * window, "threshold": auto_keep(window)}
    return sum(found.tokens[seq] for seq in whole) * ratio >= min(keep[preset], 0.5 * target)


def is_of_preset(dropped: Json, preset: str) -> bool:
    """Return whether a preset's own rule causes a drop: the window of 40 turns, or a clipped archive."""
    if preset == "clip":
        return dropped["reducer"] == "fold" and dropped["reason"].startswith("clipped summary ")
    return preset == "pipeline" and dropped["reducer"] == "window"


async def check(client: httpx.AsyncClient, url: str, preset: str, window: int, over: float, way: str) -> None:
    found = await retry_refused_call(client, preset, window, over, way)
    async with worker_queue(url) as done:
        await done()
    tokens = found.retry["tokens"]
    assert tokens["estimate"] <= tokens["target"] <= found.refused["tokens"]["target"]
    due = PRESETS[preset].low_water * tokens["target"]
    assert tokens["estimate"] >= 0.9 * due or tokens["estimate"] + found.next_unit * found.ratio > due
    assert keeps_newest_part(found, preset, window)
    assert all(is_of_preset(row, preset) for row in found.retry["evictions"] if row["disposition"] == "dropped")
    made = await runs(client)
    assert [run["state"] for run in made if run["reason"] == "overflow"] in (["succeeded"], ["skipped"])
    written = (await client.get("/v1/sessions/s/summaries", params={"limit": 1_000})).json()["items"]
    kept = (one for one in written if one["depth"] == 0 and one["status"] != "refused")
    spans = sorted((one["from_seq"], one["to_seq"]) for one in kept)
    assert all(later[0] > earlier[1] for earlier, later in pairwise(spans))  # no event was summarized twice
    if preset == "default" and window >= 100_000 and not over:  # the refusal names no count, and the window is large
        assert len(spans) <= sum(found.tokens.values()) / PRESETS[preset].summarize.chunk_tokens + 1


@pytest.mark.parametrize(("preset", "window", "over", "way"), QUICK)
async def test_s0_17_the_retry_keeps_the_newest_part_and_compacts_once(
    client: httpx.AsyncClient, database_url: str, worker: None, preset: str, window: int, over: float, way: str
) -> None:
    await check(client, database_url, preset, window, over, way)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "window", "over", "way"), ALL)
async def test_s0_17_at_any_window(
    client: httpx.AsyncClient, database_url: str, worker: None, preset: str, window: int, over: float, way: str
) -> None:
    await check(client, database_url, preset, window, over, way)
