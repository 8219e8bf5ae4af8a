"""`make bench NAME=tasks` with a small agent, local tasks and a scripted provider: all figures are of real calls."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.tasks import stand_in
from bench.tasks.__main__ import ARMS, dry_run, editing, run
from bench.tasks.ledger import AGENT, PROVIDER, Ledger, billed
from bench.tasks.local import TASKS
from bench.tasks.meter import Arm, Meter, serving
from bench.tasks.runners import LocalBench
from tests.support.small_agent import work

SETTING = {"arms": ["none", "editing"], "prices": dict(fresh=3, read=0.3, write=3.75, hour=6, output=15)}
SUM, REFUSED, LONG = "local__sum-1", "local__refused-7", "local__limit-6"
RUNNER = LocalBench(TASKS, work)


@pytest.fixture
async def meter(tmp_path: Path) -> AsyncIterator[Meter]:
    """Serve a meter with two arms that need no server of ours."""
    ledger = Ledger.resume(tmp_path / "results.jsonl", SETTING)
    async with stand_in.provider() as provider, serving(ledger, provider, 0) as meter:
        for name, edits in (("none", None), ("editing", editing(stand_in.WINDOW_TOKENS))):
            meter.arms[name] = Arm(name, meter.upstream(name), edits)
        yield meter


async def test_a_run_stops_at_its_spending_limit_and_resumes_without_paying_twice(meter: Meter, tmp_path: Path) -> None:
    ended = await run(meter.ledger, meter, RUNNER, [SUM], tmp_path / "work", spend_max=0.000001)
    assert ended.startswith(f"stopped before {SUM} in editing: USD 0.0")
    assert [(one.arm, one.solved) for one in meter.ledger.verdicts] == [("none", True)]
    paid = len(meter.ledger.calls)

    resumed = meter.ledger = Ledger.resume(meter.ledger.path, SETTING)
    assert await run(resumed, meter, RUNNER, [SUM], tmp_path / "work", spend_max=1) == "all tasks are done"
    assert [(one.arm, one.attempt) for one in resumed.verdicts] == [("none", 1), ("editing", 1)]
    assert {one.arm for one in resumed.calls[paid:]} == {"editing"}
    calls = [one for one in resumed.calls if one.arm == "none"]
    sides = [[one.usage for one in calls if one.side == side] for side in (AGENT, PROVIDER)]
    assert sides[0] == sides[1], "nothing is between the sides of this arm"
    assert len(sides[0]) == len(TASKS[0].steps())


async def test_refusals_for_length_count_and_crashes_do_not(meter: Meter, tmp_path: Path) -> None:
    """A key that is refused says nothing about an arm; the clearing of results keeps calls below the window."""
    await run(meter.ledger, meter, RUNNER, [LONG, REFUSED], tmp_path / "work", spend_max=1, crashes_max=1)
    ends = {(one.arm, one.task): (one.solved, one.crashed, one.ended) for one in meter.ledger.verdicts}
    assert ends["none", LONG] == (False, False, "BadRequestError")
    assert ends["editing", LONG] == (False, False, "Submitted"), "the number was cleared before it was needed"
    assert {ends[arm, REFUSED] for arm in ("none", "editing")} == {(False, True, "AuthenticationError")}
    refused = [one for one in meter.ledger.calls if one.too_long]
    assert [(one.side, one.arm) for one in refused] == [(PROVIDER, "none"), (AGENT, "none")]


@pytest.mark.slow
@pytest.mark.wing("gateway")
async def test_all_arms_and_all_tasks(tmp_path: Path) -> None:
    """Ours and the rival stay within the window, and ours reads the larger share of its input from the cache."""
    path = tmp_path / "results.jsonl"
    text = await dry_run(path, tmp_path / "work", [one.name for one in TASKS], work)
    ledger = Ledger.read(path)
    solved = {arm: sum(one.solved for one in ledger.verdicts if one.arm == arm) for arm in ARMS}
    assert solved == {"none": 4, "editing": 3, "ours": 5, "rival": 5}, text
    assert {arm for arm in ARMS if f"| {arm} | {REFUSED} | AuthenticationError |" in text} == set(ARMS)
    assert {one.arm for one in ledger.calls if one.too_long} == {"none"}
    shares = {}
    for arm in ("ours", "rival"):
        usage = [one.usage for one in billed(ledger.calls) if one.arm == arm and one.usage is not None]
        shares[arm] = sum(one.read for one in usage) / sum(one.read + one.write + one.fresh for one in usage)
    assert shares["ours"] > shares["rival"]
