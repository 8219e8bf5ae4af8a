"""A reducer added by the steps and code of docs/guides/add-a-reducer.md."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given

from app.core.plan.pipeline import EVICTIONS, Plan, Row, Situation, plan
from app.core.plan.reducers.economics import Moment
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.plan.state.results import PairedResult
from app.core.plan.state.stubs import apply_stubs, stub_for
from app.core.plan.update import PlanInputs
from app.core.policy.groups import Economics
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from tests.property.builders import Raw, logs, policies
from tests.property.steps import assert_invariants, batches, random_logs, shares, steps, target_of
from tests.unit.builders import COUNTER, Log, simple_retention

REDUCER = "errors"


@dataclass(frozen=True, slots=True)
class ErrorReducer:
    """Shows the errors of earlier turns as stubs: they were about attempts that are over."""

    never_evict: tuple[str, ...] = ()

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stubs only; drops nothing."""
        old = (pair for pair in context.paired_results if self._may_go(pair, context))
        stubs = (stub_for(one.result.event, context, REDUCER, "error_of_an_earlier_turn") for one in old)
        return apply_stubs(context, state, [stub for stub in stubs if stub is not None])

    def _may_go(self, pair: PairedResult, context: Context) -> bool:
        event = pair.result.event
        if not event.is_error or event.turn >= context.turn:
            return False
        if event.pinned or event.seq in context.shown_again or event.tool in self.never_evict:
            return False
        return pair.call is not None and pair.result.stub is None


ERRORS = Row(lambda at: ErrorReducer(at.policy.retention.never_evict), lambda at, _: at.may_evict)
TABLE = (ERRORS, *EVICTIONS)
ROOM = Budget(window=1_000, reserve=0, injection_reserve=0, target=1_000, goal=700)
EVERY = Policy(evict="every_assembly", retention=simple_retention(keep_last=None))


def log_with_errors() -> Log:
    """Return a log with an error in an earlier turn, a pinned one, one of the running turn, and a successful result."""
    log = Log()
    log.user()
    log.result(log.call(), is_error=True)
    log.result(log.call(), is_error=True, pinned=True)
    log.round()
    log.user()
    log.result(log.call(), is_error=True)
    return log


def plan_of(log: Log, policy: Policy, state: Frontier = START, target: int = 100_000) -> Plan:
    budget = Budget(window=target, reserve=0, injection_reserve=0, target=target, goal=int(target * policy.low_water))
    return plan(PlanInputs(log.events, log.turn, COUNTER), budget, policy, state, evictions=TABLE)


def test_its_decision_is_in_the_plan() -> None:
    planned_once = plan_of(log_with_errors(), EVERY)
    assert [(stub.seq, stub.reducer) for stub in planned_once.state.stubs] == [(3, REDUCER)]
    assert planned_once.cause == "policy"


def test_it_changes_nothing_again_and_nothing_where_it_does_not_run() -> None:
    log = log_with_errors()
    first = plan_of(log, EVERY)
    second = plan_of(log, EVERY, first.state)
    assert (second.cause, second.state) == (None, first.state)
    warm = plan_of(log, Policy(evict="on_pressure", retention=simple_retention(keep_last=None)))
    assert (warm.cause, warm.state) == (None, START)


def test_where_it_has_nothing_to_do_it_returns_the_same_objects() -> None:
    log = Log()
    log.user()
    log.round()
    before = plan_of(log, EVERY)
    after = ErrorReducer().reduce(before.context, ROOM, before.state)
    assert after.context is before.context
    assert after.state is before.state


@pytest.mark.parametrize("why", ["pinned", "never_evict", "asked"])
def test_it_stubs_no_event_that_must_stay(why: str) -> None:
    """Call `reduce` directly: a plan would restore a pinned event and hide the fault."""
    log = Log()
    log.user()
    went = log.result(log.call(), is_error=True)
    tool = "ask" if why == "never_evict" else "read"
    stayed = log.result(log.call(tool), is_error=True, pinned=why == "pinned")
    log.user()
    context = project(log.events, START, COUNTER, turn=log.turn)
    context = replace(context, shown_again=frozenset({stayed} if why == "asked" else ()))
    done = ErrorReducer(never_evict=("ask",)).reduce(context, ROOM, START)
    assert [stub.seq for stub in done.state.stubs] == [went]
    assert ErrorReducer(never_evict=("ask",)).reduce(done.context, ROOM, done.state) == done


@pytest.mark.parametrize(
    ("evict", "on_cold", "moments"),
    [
        ("on_pressure", True, {"pressed"}),
        ("on_cache_expiry", True, {"pressed", "cold"}),
        ("economic", True, {"pressed", "cold"}),
        ("economic", False, {"pressed"}),
        ("every_assembly", True, {"pressed", "cold", "warm"}),
    ],
)
def test_it_runs_when_the_policy_evicts(evict: str, on_cold: bool, moments: set[str]) -> None:
    read, policy = PlanInputs((), 0, COUNTER), Policy(evict=evict, economics=Economics(on_cold=on_cold))
    nothing = Reduced(project((), START, COUNTER, turn=0), START)
    every: tuple[Moment, ...] = ("warm", "cold", "pressed")
    situations = [Situation(read, ROOM, policy, force=False, moment=moment) for moment in every]
    assert {at.moment for at in situations if ERRORS.when(at, nothing)} == moments


def with_errors(raw: list[Raw]) -> list[Raw]:
    """Return the log with long errors as its results, every third of them pinned."""
    results = [index for index, event in enumerate(raw) if event["type"] == "tool.result"]
    error = {"content": "no such file\n" * 100, "is_error": True}
    return [
        {**event, **error, "pinned": results.index(index) % 3 == 2} if index in results else event
        for index, event in enumerate(raw)
    ]


@random_logs
@given(logs().map(with_errors), batches, shares, policies)
def test_the_invariants_hold_for_it(raw: list[Raw], sizes: list[int], share: float, policy: Policy) -> None:
    target = target_of(raw, share)
    for step in steps(raw, sizes, target, policy, evictions=TABLE):
        assert_invariants(step, target, policy, TABLE)
        mine = {stub.seq for stub in step.plan.state.stubs if stub.reducer == REDUCER}
        assert mine <= {
            e.seq
            for e in step.session.events
            if e.is_error and not e.pinned and e.turn < step.session.turn and e.tool not in policy.retention.never_evict
        }
