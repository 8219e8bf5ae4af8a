"""Hiding and showing on random logs: the invariants of a context hold after any decisions."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import CannotFit
from app.core.log.events import EventType
from app.core.plan.pipeline import Plan
from app.core.plan.reducers.visibility import NewestDecision, may_not_be_hidden
from app.core.policy.groups import SHOW_ALL
from app.core.policy.policy import Policy
from app.core.render.formats import FORMATS
from app.core.render.request import arrange
from tests.property.builders import (
    Raw,
    log_of,
    logs,
    policies,
    whole_inputs,
)
from tests.property.steps import (
    CHECKS,
    ROOMY,
    assert_accounted,
    assert_protected,
    check_written,
    planned,
    random_logs,
    rendered,
    shares,
    target_of,
)

hidden_at_random = st.lists(
    st.builds(
        NewestDecision,
        st.integers(1, 40),
        st.just(1),
        st.sampled_from([True, True, False]),
        st.sampled_from([None, "", "[not of interest]"]),
    ),
    unique_by=lambda one: one.seq,
)


@random_logs
@given(logs(), shares, policies, hidden_at_random)
def test_hidden_events_are_not_shown_and_all_invariants_hold(
    raw: list[Raw], share: float, policy: Policy, decided: list[NewestDecision]
) -> None:
    """This includes decisions that would have been refused."""
    session, target = log_of(raw), target_of(raw, share)
    result = planned(replace(whole_inputs(session), decided=tuple(decided), decisions=1), target, policy)
    if isinstance(result, CannotFit):
        return
    hidden = {one.seq: one for one in decided if one.hidden}
    context = result.context
    for item in context.items:
        if item.event.seq in hidden and not may_not_be_hidden(item.event, context):
            words = hidden[item.event.seq].replacement
            if item.event.type is EventType.TOOL_CALL:  # is hidden only with its result
                assert item.stub is None or item.shown or item.stub.reducer == "visibility"
            elif words:
                assert item.shown
                assert item.block().content == words
            else:
                assert not item.shown or str(item.block().content).startswith("[Hidden.")
    calls = {i.event.seq: i.shown for i in context.items if i.event.type is EventType.TOOL_CALL}
    assert all(calls[i.event.call_seq or 0] or not i.shown for i in context.items if i.event.call_seq)
    assert_accounted(session, result)
    if policy.shows == SHOW_ALL:
        assert_protected(session, result)
    layout = arrange(context, result.state)
    for name in CHECKS:
        check_written(name, layout)


@random_logs
@given(logs())
def test_events_shown_again_are_unchanged(raw: list[Raw]) -> None:
    """Hiding all events and showing them again leaves the session unchanged."""
    session, target, policy = log_of(raw), ROOMY, Policy(evict="on_pressure")
    seqs = range(1, session.state.head + 1)
    reads = [
        replace(whole_inputs(session), decided=tuple(NewestDecision(seq, n, hide) for seq in seqs), decisions=n)
        for n, hide in ((1, True), (2, False))
    ]
    plain, away = planned(whole_inputs(session), target, policy), planned(reads[0], target, policy)
    assert isinstance(plain, Plan)
    assert isinstance(away, Plan)
    again = planned(reads[1], target, policy, away.state)
    assert isinstance(again, Plan)
    for form in FORMATS:
        assert rendered(again, form) == rendered(plain, form)
