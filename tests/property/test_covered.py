"""A covered event is never lost (I11), a drop heals, and no more is evicted than necessary."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.core.errors import CannotFit
from app.core.memory.cover import Summary, fold_ends, refine, tiling
from app.core.plan.pipeline import Plan
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.update import PlanInputs
from app.core.policy.groups import Cut, Summarize, TtlPruning
from app.core.policy.policy import PRESETS, Policy
from app.core.record.evictions import dispositions
from tests.property.builders import Raw, Session, bounded_inputs, log_of, logs, policies, tree_of, whole_inputs
from tests.property.steps import budget_of, planned, random_logs, shares, target_of

chunks = st.sampled_from([1, 2, 3])


def lost_seqs(session: Session, result: Plan, tree: Iterable[Summary]) -> list[int]:
    """Return the covered events that a context leaves out for another reason than their expiry."""
    last = max(fold_ends(tree), default=0)
    expired = {s for d in result.state.drops if d.reducer == "expiry" for s in range(d.from_seq, d.to_seq + 1)}
    left_out = {s for f in result.state.folds if not f.shown for s in range(f.from_seq, f.to_seq + 1)}
    words = dispositions(session.events, result.context, result.state)
    return [s for s, word in words.items() if word == "dropped" and s <= last and s not in expired | left_out]


def inputs_of(session: Session, bound: int | None, tree: tuple[Summary, ...], state: Frontier = START) -> PlanInputs:
    read = whole_inputs(session) if bound is None else bounded_inputs(session, bound, state, 0)
    known = {one.id: one for one in tree}
    return replace(read, tree=tree, folded=tuple(known[fold.id] for fold in state.folds))


@random_logs
@given(logs(), chunks, st.one_of(st.none(), st.integers(1, 4000)), shares, policies)
def test_i11_a_covered_event_is_never_dropped(
    raw: list[Raw], chunk: int, bound: int | None, share: float, policy: Policy
) -> None:
    """This holds for any first request and any part of the log that was read."""
    session = log_of(raw)
    tree = tree_of(session, chunk)
    target = target_of(raw, share)
    result = planned(inputs_of(session, bound, tree), target, policy)
    if isinstance(result, Plan):
        assert lost_seqs(session, result, tree) == []
        hidden = any(not fold.shown for fold in result.state.folds)
        if hidden and policy.caps.summaries is None:  # without a cap, a fold is not shown only for lack of room
            assert result.context.tokens > target // 4


@random_logs
@given(logs(), chunks, st.one_of(st.none(), st.integers(1, 4000)), st.sampled_from([0.2, 0.5, 0.8]), policies)
def test_i11_a_drop_heals_at_the_next_context_once(
    raw: list[Raw], chunk: int, bound: int | None, share: float, policy: Policy
) -> None:
    session, target = log_of(raw), target_of(raw, share)
    policy = replace(policy, ttl_pruning=TtlPruning())
    first = planned(inputs_of(session, bound, ()), target, policy)
    assume(isinstance(first, Plan))
    assert isinstance(first, Plan)
    tree = tree_of(session, chunk)
    missed = lost_seqs(session, first, tree)
    visible = replace(session, events=session.events)
    read = inputs_of(visible, None, tree, first.state)
    second = planned(read, target, policy, first.state)
    if isinstance(second, CannotFit):
        return
    assert lost_seqs(session, second, tree) == []
    if missed:
        assert second.cause is not None
    known = {one.id: one for one in tree}
    folded = tuple(known[fold.id] for fold in second.state.folds)
    third = planned(replace(read, folded=folded), target, policy, second.state)
    assert isinstance(third, Plan)
    assert third.state.folds == second.state.folds or third.context.tokens < second.context.tokens


def rounds(sizes: list[int], per_turn: int) -> list[Raw]:
    """Return a log of small rounds, `per_turn` of them in each turn."""
    raw: list[Raw] = []
    for number, size in enumerate(sizes):
        if number % per_turn == 0:
            raw.append({"type": "user.message", "content": f"question {number}"})
        raw.append(
            {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"{number}.py"}}
        )
        raw.append({"type": "tool.result", "call_id": f"c{number}", "content": "word " * size})
    return raw


@random_logs
@given(
    st.lists(st.integers(20, 60), min_size=60, max_size=120),
    st.sampled_from([1, 3, 500]),
    st.sampled_from(sorted(PRESETS)),
)
def test_room_what_is_forced_out_is_no_more_than_it_must_be(sizes: list[int], per_turn: int, name: str) -> None:
    """If more is available, at least nine tenths of `low_water` of the target are in use."""
    raw = rounds(sizes, per_turn)
    session, target = log_of(raw), target_of(raw, 0.5)
    result = planned(whole_inputs(session), target, PRESETS[name])
    assert isinstance(result, Plan)
    if any(drop.reducer == "last_resort" for drop in result.state.drops):
        assert result.context.tokens >= 0.9 * budget_of(target, PRESETS[name]).low_water * target


@random_logs
@given(logs(), shares, st.builds(Cut, keep_messages=st.integers(1, 5)))
def test_room_nothing_uncovered_goes_before_the_target_is_exceeded(raw: list[Raw], share: float, cut: Cut) -> None:
    """A trigger and a cut reduce by summaries; without one every event that fits the target stays."""
    session, target = log_of(raw), target_of(raw, share)
    policy = replace(Policy(cut=cut), evict="on_pressure")
    unreduced = planned(whole_inputs(session), 1_000_001, policy)  # expiry may replace a text by a longer one
    assert isinstance(unreduced, Plan)
    result = planned(whole_inputs(session), target | 1, policy)
    if unreduced.context.tokens <= target:
        assert isinstance(result, Plan)
        assert not [drop for drop in result.state.drops if drop.reducer != "expiry"]


@random_logs
@given(logs(), chunks, shares, st.sampled_from(["all", "clip", "latest"]), st.sampled_from(["all", "clip", "latest"]))
def test_i7_a_change_of_policy_keeps_every_span_reachable(
    raw: list[Raw], chunk: int, share: float, first: str, second: str
) -> None:
    """Folded spans are tiled by summaries that together cover all of them, whatever was shown before."""
    session, tree, target = log_of(raw), tree_of(log_of(raw), chunk), target_of(raw, share)
    for view in (first, second):
        policy = Policy(summarize=Summarize(view=view))
        result = planned(inputs_of(session, None, tree), target, policy)
        if not isinstance(result, Plan) or not result.state.folds:
            continue
        folds = result.state.folds
        assert [fold.from_seq for fold in folds] == [1, *(fold.to_seq + 1 for fold in folds[:-1])]
        for one in tree:
            if one.to_seq <= result.state.folded_to:
                assert any(f.from_seq <= one.from_seq and one.to_seq <= f.to_seq for f in folds) or any(
                    one.from_seq <= f.from_seq and f.to_seq <= one.to_seq for f in folds
                )


@random_logs
@given(logs(), chunks, st.integers(0, 400))
def test_a_tiling_has_no_hole_and_a_finer_one_costs_no_more_than_its_room(
    raw: list[Raw], chunk: int, room: int
) -> None:
    tree = tree_of(log_of(raw), chunk)

    def cost(one: Summary) -> int:
        return one.tokens

    for to_seq in fold_ends(tree):
        coarse = tiling(tree, 1, to_seq)
        fine = refine(tree, coarse, room, cost)
        for shown in (coarse, fine):
            assert [one.from_seq for one in shown] == [1, *(one.to_seq + 1 for one in shown[:-1])]
            assert shown[-1].to_seq == to_seq
        assert len(fine) >= len(coarse)
        assert sum(map(cost, fine)) <= sum(map(cost, coarse)) + room


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "clip"])
def test_a_wider_view_shows_more_of_the_same_tree(name: str) -> None:
    raw = rounds([40] * 80, 4)
    session = log_of(raw)
    tree = tree_of(session, 8)
    seen = []
    for share in (0.2, 0.4, 0.8):
        result = planned(inputs_of(session, 2 * target_of(raw, share), tree), target_of(raw, share), PRESETS[name])
        assert isinstance(result, Plan)
        seen.append(sum(item.event.tokens for item in result.context.items if item.stub is None))
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]
