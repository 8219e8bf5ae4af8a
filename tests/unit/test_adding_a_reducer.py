"""A reducer that is added as docs/guides/add-a-reducer.md says, with the guide's own code."""

from dataclasses import dataclass

from hypothesis import given

from app.core.plan.context.context import Context, PairedResult, Reduced
from app.core.plan.context.frontier import START, Frontier
from app.core.plan.context.stubs import apply_stubs, stub_for
from app.core.plan.pipeline import EVICTIONS, Plan, PlanInputs, Row, plan
from app.core.policy.policy import Policy
from app.core.render.arrange import arrange
from app.core.tokens.budget import Budget
from tests.property.builders import Raw, logs, policies
from tests.property.steps import (
    CHECKS,
    assert_accounted,
    assert_protected,
    batches,
    check_written,
    planned,
    random_logs,
    rendered,
    shares,
    steps,
    target_of,
)
from tests.unit.builders import COUNTER, Log, plainly

REDUCER = "errors"


@dataclass(frozen=True, slots=True)
class ErrorReducer:
    """Shows the errors of earlier turns as stubs: they were about attempts that are over."""

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stubs only; drops nothing."""
        old = (answer for answer in context.answers if self._may_go(answer, context))
        stubs = (stub_for(one.result.event, context.counter, REDUCER, "error_of_an_earlier_turn") for one in old)
        return apply_stubs(context, state, [stub for stub in stubs if stub is not None])

    def _may_go(self, answer: PairedResult, context: Context) -> bool:
        event = answer.result.event
        if not event.is_error or event.turn >= context.turn or answer.result.stub is not None:
            return False
        return not event.pinned and event.seq not in context.asked


ERRORS = Row(lambda at: ErrorReducer(), lambda at, _: at.moment != "warm" or at.at_every_assembly)
TABLE = (ERRORS, *EVICTIONS)
EVERY = Policy(evict="every_assembly", retention=plainly(keep_last=None))


def log_with_errors() -> Log:
    """An error in an earlier turn, one that is pinned, one of the running turn, and a result that is none."""
    log = Log()
    log.user()
    log.result(log.call(), is_error=True)
    log.result(log.call(), is_error=True, pinned=True)
    log.round()
    log.user()
    log.result(log.call(), is_error=True)
    return log


def plan_of(log: Log, policy: Policy, state: Frontier = START, target: int = 100_000) -> Plan:
    budget = Budget(target, 0, 0, target, int(target * policy.low_water))
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
    warm = plan_of(log, Policy(evict="on_pressure", retention=plainly(keep_last=None)))
    assert (warm.cause, warm.state) == (None, START)


def test_where_it_has_nothing_to_do_it_returns_the_same_objects() -> None:
    log = Log()
    log.user()
    log.round()
    before = plan_of(log, EVERY)
    after = ErrorReducer().reduce(before.context, Budget(1_000, 0, 0, 1_000, 700), before.state)
    assert after.context is before.context
    assert after.state is before.state


def failing(raw: list[Raw]) -> list[Raw]:
    """A log whose results are long errors, every third of them pinned."""
    results = [index for index, event in enumerate(raw) if event["type"] == "tool.result"]
    error = {"content": "no such file\n" * 100, "is_error": True}
    return [
        {**event, **error, "pinned": results.index(index) % 3 == 2} if index in results else event
        for index, event in enumerate(raw)
    ]


@random_logs
@given(logs().map(failing), batches, shares, policies)
def test_the_invariants_hold_for_it(raw: list[Raw], sizes: list[int], share: float, policy: Policy) -> None:
    target = target_of(raw, share)
    for step in steps(raw, sizes, target, policy, evictions=TABLE):
        assert step.plan.context.tokens <= target
        assert (step.plan.cause is None) == (step.plan.state == step.before)
        assert_accounted(step.session, step.plan)
        if policy.authors is None and policy.types is None:
            assert_protected(step.session, step.plan)
        for name in CHECKS:
            check_written(name, arrange(step.plan.context, step.plan.state))
        again = planned(step.read, target, policy, step.before, TABLE)
        assert isinstance(again, Plan)
        assert rendered(again, "openai") == rendered(step.plan, "openai")
        mine = {stub.seq for stub in step.plan.state.stubs if stub.reducer == REDUCER}
        assert mine <= {
            e.seq for e in step.session.events if e.is_error and not e.pinned and e.turn < step.session.turn
        }
