"""Results shown once: resumed plans equal new ones, markers are set before them, and no stub precedes its call."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.plan.pipeline import plan
from app.core.plan.reducers.once import REDUCER
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.update import EarlierPlan, PlanInputs
from app.core.policy.policy import PRESETS
from app.core.render.breakpoints import Marking, choose_breakpoints
from app.core.render.request import write_text
from app.core.tokens.budget import budget_for
from app.core.tokens.models import ANTHROPIC
from bench.cost.sessions import COUNTER
from tests.property.test_money import session_of, steps
from tests.support.examples import examples
from tests.support.validators import check_anthropic
from tests.support.written_requests import write_in

POLICY = PRESETS["unattended"]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(steps, min_size=2, max_size=14), st.sampled_from([100_000, 1_000_000]))
def test_a_once_shown_result_is_whole_in_one_call_after_the_markers_then_a_stub(
    made: list[tuple[int, bool, int, list[int]]], window: int
) -> None:
    session = session_of(0, made)
    policy = replace(POLICY, retention=replace(POLICY.retention, identifiers=0.0))
    budget = budget_for(policy, window, COUNTER.estimator.margin)
    state: Frontier = START
    before: EarlierPlan | None = None
    used_at: float | None = None
    whole: set[int] = set()
    for call in session.calls:
        events = session.events[: call.events]
        read = PlanInputs(
            events, events[-1].turn, COUNTER, earlier=before, now=call.at, used_at=used_at, cache=ANTHROPIC
        )
        done = plan(read, budget, policy, state)
        anew = plan(replace(read, earlier=None), budget, policy, state)
        assert (done.state, done.cause, done.once_from) == (anew.state, anew.cause, anew.once_from)
        assert done.context.items == anew.context.items
        assert done.context.tokens <= budget.target
        assert {stub.seq for stub in done.state.stubs if stub.reducer == REDUCER} <= whole
        assert {stub.seq for stub in state.stubs} <= {stub.seq for stub in done.state.stubs} | _left_out(done.state)
        text = write_text("anthropic", done.context, done.state)
        points = choose_breakpoints(text.layout, text.places, (), Marking(uncached_from=done.once_from))
        assert all(point.seq < done.once_from for point in points if done.once_from)
        check_anthropic(write_in("anthropic", text.layout, points).request)
        whole |= {item.event.seq for item in done.context.items if item.stub is None}
        state, used_at = done.state, call.at
        before = EarlierPlan(done.context, state, len(events))


def _left_out(state: Frontier) -> set[int]:
    dropped = {seq for drop in state.drops for seq in range(drop.from_seq, drop.to_seq + 1)}
    return dropped | set(range(1, state.floor + 1))
