"""Cuts on random logs are legal, and keep every event that must stay."""

from hypothesis import given
from hypothesis import strategies as st

from app.core.log.events import EventType
from app.core.plan.reducers.last_resort import LastResortReducer
from app.core.plan.state import cuts
from app.core.plan.state.cuts import ALWAYS, find_cut
from app.core.plan.state.frontier import START
from app.core.plan.state.projection import project
from app.core.plan.update import update_prefix
from app.core.policy.groups import Cut
from app.core.policy.policy import Policy
from tests.property.builders import COUNTER, Raw, log_of, logs
from tests.property.steps import budget_of, random_logs, target_of

cut_rules = st.builds(
    lambda size, lean, split: Cut(**size, lean=lean, split_turn=split),
    st.sampled_from([{"keep_tokens": 50}, {"keep_tokens": 2_000}, {"keep_messages": 3}, {"keep_turns": 1}]),
    st.sampled_from(["forward", "back"]),
    st.sampled_from(["prefix", "protect_current", "advance"]),
)


@random_logs
@given(logs(), cut_rules)
def test_every_cut_is_legal(raw: list[Raw], cut: Cut) -> None:
    session = log_of(raw)
    context = project(session.events, START, COUNTER, turn=session.turn)
    point = find_cut(context, budget_of(100_000, Policy()), cut)
    if point is None:
        return
    for rule in ALWAYS:
        assert point.index in rule(context)
    before = {item.event.seq for item in context.items[: point.index]}
    for item in context.items[point.index :]:
        assert item.event.call_seq not in before
    turn = (
        None
        if point.index in cuts.legal(context, (*ALWAYS, cuts.turn_starts))
        else context.items[point.index].event.turn
    )
    assert point.split_turn == turn
    if cut.split_turn == "advance":
        assert point.split_turn is None
        assert point.index in cuts.turn_starts(context)
    if cut.split_turn != "prefix":
        assert point.split_turn != session.turn


@random_logs
@given(logs(), cut_rules)
def test_protected_events_stay(raw: list[Raw], cut: Cut) -> None:
    session = log_of(raw)
    state = update_prefix(session.events, START)
    context = project(session.events, state, COUNTER, turn=session.turn)
    done = LastResortReducer(cut).reduce(context, budget_of(target_of(raw, 0.2), Policy()), state)
    left = {item.event.seq for item in done.context.items}
    assert context.protected <= left
    results = {i.event.call_seq for i in done.context.items if i.event.type is EventType.TOOL_RESULT}
    assert results <= left | {None}
