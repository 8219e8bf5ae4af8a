"""Expiry and pruning on random logs with expiring events: I3, I4, I9, and both are final."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.core.log.events import BOOKKEEPING, EventType
from app.core.plan.reducers.expiry import ExpiryReducer
from app.core.plan.reducers.ttl import TtlReducer
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.plan.update import adopt_late_results, update_prefix
from app.core.policy.groups import TtlPruning
from app.core.record.evictions import dispositions
from app.core.render.request import arrange
from app.core.tokens.budget import Budget
from tests.property.builders import COUNTER, ODD, Raw, Session, append, logs
from tests.property.steps import CHECKS, check_written, random_logs

ROOM = Budget(10**9, 0, 0, 10**9, 10**9)
KEYS = ("plan", "a.py", "e3")
CLOCK = 1_000.0

_fields = st.fixed_dictionaries(
    {},
    optional={
        "ttl_turns": st.integers(1, 3),
        "ttl_seconds": st.sampled_from([1, 500, 5_000]),
        "replacement": st.sampled_from(["[old]", "a longer replacement " * 20, *ODD]),
        "supersedes": st.sampled_from(KEYS),
        "path": st.sampled_from(KEYS),
        "mime": st.just("text/plain"),
    },
)


@st.composite
def perishable_logs(draw: st.DrawFn) -> list[Raw]:
    """Draw logs as an agent may post them, of which about half the events have an expiry."""
    dated = []
    for number, event in enumerate(draw(logs()), start=1):
        said: Raw = draw(_fields) if draw(st.booleans()) else {}
        at = datetime.fromtimestamp(CLOCK * number, UTC).isoformat()
        dated.append({**event, "id": f"e{number}", **said, "occurred_at": at})
    return dated


rules = st.builds(
    TtlPruning,
    ttl_seconds=st.sampled_from([None, 300]),
    keep_recent_turns=st.sampled_from([0, 1, 2]),
    keep_recent_intact_turns=st.just(0),
    text_chars=st.sampled_from([0, 10, 4000]),
    result_chars=st.sampled_from([0, 10, 400]),
    images=st.sampled_from([0, 2]),
)
batches = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@dataclass(frozen=True, slots=True)
class Step:
    """A session after one more batch, and the result of both reducers at `now`."""

    session: Session
    before: Frontier
    now: float
    after: Reduced


def context_before(session: Session, state: Frontier) -> Reduced:
    """Return the context before any reducer runs."""
    state = update_prefix(session.events, state)

    def context(state: Frontier) -> Context:
        return project(session.events, state, COUNTER, turn=session.turn)

    state = adopt_late_results(context(state), state)
    return Reduced(context(state), state)


def run_reducers(done: Reduced, now: float, pruning: TtlPruning, used_at: float | None) -> Reduced:
    """Apply expiry, then pruning."""
    done = ExpiryReducer(now).reduce(done.context, ROOM, done.state)
    return TtlReducer(pruning, now, used_at).reduce(done.context, ROOM, done.state)


def steps(raw: Sequence[Raw], sizes: Sequence[int], pruning: TtlPruning) -> Iterator[Step]:
    """Append the log in batches; some calls come after the provider's cache has gone cold, some before."""
    session, state, at = Session(), START, 0
    while at < len(raw):
        size = sizes[at % len(sizes)]
        session = append(session, raw[at : at + size])
        at += size
        now = CLOCK * at
        after = run_reducers(context_before(session, state), now, pruning, now - 500 * (at % 2))
        yield Step(session, state, now, after)
        state = after.state


@random_logs
@given(perishable_logs(), batches, rules)
def test_i3_every_provider_accepts_it(raw: list[Raw], sizes: list[int], pruning: TtlPruning) -> None:
    for step in steps(raw, sizes, pruning):
        layout = arrange(step.after.context, step.after.state)
        for name in CHECKS:
            check_written(name, layout)


@random_logs
@given(perishable_logs(), batches, rules)
def test_i4_every_event_is_accounted_for_once(raw: list[Raw], sizes: list[int], pruning: TtlPruning) -> None:
    for step in steps(raw, sizes, pruning):
        context, state = step.after.context, step.after.state
        words = dispositions(step.session.events, context, state)
        assert list(words) == list(range(1, step.session.state.head + 1))
        dropped = [seq for drop in state.drops for seq in range(drop.from_seq, drop.to_seq + 1)]
        assert len(dropped) == len(set(dropped))
        fixed = {event.seq for event in context.prefix} | {row.seq for row in state.superseded}
        visible = {item.event.seq for item in context.items}
        for event in step.session.events:
            places = (event.seq in visible, event.seq in fixed, event.seq in dropped and event.rendered)
            assert sum(places) == (event.type not in BOOKKEEPING), (event.seq, words[event.seq])
        assert visible == {item.event.seq for item in context_before(step.session, state).context.items}


@random_logs
@given(perishable_logs(), batches, rules)
def test_i9_open_work_is_protected(raw: list[Raw], sizes: list[int], pruning: TtlPruning) -> None:
    for step in steps(raw, sizes, pruning):
        words = dispositions(step.session.events, step.after.context, step.after.state)
        waiting = {call.seq for call in step.session.state.open_calls.values()}
        for event in step.session.events:
            asked = event.type is EventType.USER_MESSAGE and event.turn == step.session.turn
            if asked or event.seq in waiting or (event.pinned and event.rendered):
                assert words[event.seq] == "verbatim"
        assert {words[event.seq] for event in step.after.context.prefix} <= {"verbatim"}


@random_logs
@given(perishable_logs(), batches, rules)
def test_a_call_goes_only_with_its_result(raw: list[Raw], sizes: list[int], pruning: TtlPruning) -> None:
    for step in steps(raw, sizes, pruning):
        visible = {item.event.seq for item in step.after.context.items}
        for event in step.session.events:
            if event.call_seq is not None:
                assert (event.seq in visible) == (event.call_seq in visible)


@random_logs
@given(perishable_logs(), batches, rules)
def test_again_by_the_same_clock_changes_nothing(raw: list[Raw], sizes: list[int], pruning: TtlPruning) -> None:
    for step in steps(raw, sizes, pruning):
        again = run_reducers(step.after, step.now, pruning, step.now - 500)
        once_more = run_reducers(again, step.now, pruning, step.now - 500)
        assert once_more.context is again.context
        assert once_more.state is again.state
        afresh = context_before(step.session, again.state)
        assert run_reducers(afresh, step.now, pruning, step.now - 500).state == again.state


@random_logs
@given(perishable_logs(), batches, rules)
def test_evicted_events_stay_evicted(raw: list[Raw], sizes: list[int], pruning: TtlPruning) -> None:
    for step in steps(raw, sizes, pruning):
        before, after = step.before, step.after.state
        gone = {seq for drop in after.drops for seq in range(drop.from_seq, drop.to_seq + 1)}
        assert {seq for drop in before.drops for seq in range(drop.from_seq, drop.to_seq + 1)} <= gone
        assert {stub.seq for stub in before.stubs} - gone <= {stub.seq for stub in after.stubs}
        assert after.floor >= before.floor
