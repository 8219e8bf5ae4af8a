"""An event evicted before it was pinned is shown again as soon as it fits."""

import math
from dataclasses import replace

from app.core.plan.reducers.visibility import PinnedReducer
from app.core.policy.groups import DialogueWindow
from app.core.policy.policy import Policy
from app.core.tokens.budget import ROOM_SHARE, Budget
from tests.unit.builders import Log, simple_retention

POLICY = Policy(evict="on_pressure", retention=simple_retention(keep_last=0), dialogue_window=DialogueWindow(turns=1))


def budget(tokens: int) -> Budget:
    """Return a budget with `tokens` tokens beyond the room that a reduction keeps free."""
    target = math.ceil(tokens / (1 - ROOM_SHARE))
    return Budget(target, 0, 0, target, target)


def log_of_results() -> tuple[Log, int, int]:
    """Return a log with two results that a plan has stubbed, and their seqs; the tests pin them afterwards."""
    log = Log()
    log.user()
    large, small = log.round(tokens=900), log.round(tokens=300)
    return log, large, small


def test_the_newest_are_restored_up_to_the_threshold() -> None:
    log, large, small = log_of_results()
    planned = log.plan(400, policy=Policy(evict="every_assembly", retention=simple_retention(keep_last=0)))
    assert {stub.seq for stub in planned.state.stubs} == {large, small}
    items = tuple(replace(item, event=replace(item.event, pinned=True)) for item in planned.context.items)
    context = replace(planned.context, items=items)
    for room, left in ((0, {large, small}), (350, {large}), (2_000, set())):
        done = PinnedReducer().reduce(context, budget(context.tokens + room), planned.state)
        assert {stub.seq for stub in done.state.stubs} == left
        assert done.context.tokens <= context.tokens + room


def test_unpinned_events_stay_evicted() -> None:
    log, _, _ = log_of_results()
    planned = log.plan(400, policy=Policy(evict="every_assembly", retention=simple_retention(keep_last=0)))
    done = PinnedReducer().reduce(planned.context, budget(100_000), planned.state)
    assert done.state is planned.state


def test_it_is_restored_in_the_plan_that_frees_the_tokens() -> None:
    log, large, _ = log_of_results()
    before = log.plan(900, policy=POLICY)
    assert large in {stub.seq for stub in before.state.stubs}
    log.events[large - 1] = replace(log.events[large - 1], pinned=True)
    for _ in range(3):
        log.user()
        log.assistant(tokens=600)
    after = log.plan(1_900, policy=POLICY, state=before.state)
    assert after.cause == "budget"  # all together exceeded the target, and older turns were dropped
    assert large not in {stub.seq for stub in after.state.stubs}
